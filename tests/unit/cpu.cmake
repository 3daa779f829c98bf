# Tests of src/cpu.
