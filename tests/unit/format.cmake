# Tests of src/format.
