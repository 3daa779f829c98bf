// coli selftest: what a GPU computes, bit for bit, and what it costs, on one page that can be pasted into a report.
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "base/fp_mode.h"
#include "base/process.h"
#include "base/thread_team.h"
#include "command.h"
#include "experts/disk_probe.h"
#include "loaded_model.h"
#include "options.h"
#include "report.h"
#include "selftest/checks.h"
#include "selftest/measurements.h"

namespace colibri {
namespace {

struct SelftestFlags {
  std::string model, gpu = "metal";
  bool quick = false, json = false;
};

struct CheckResult {
  std::string name;
  selftest::Compared compared;
  std::string error;  // why it was not compared
  bool passed() const { return error.empty() && compared.differing == 0 && compared.values > 0; }
};

// The same prompt on the CPU and on the GPU.
struct ModelRun {
  std::string error;
  std::int64_t prompt_tokens = 0, answer_tokens = 0;
  GenerateStats cpu, gpu;
  std::vector<std::int32_t> cpu_ids, gpu_ids;
  std::uint64_t redone() const { return gpu.gpu ? gpu.gpu->redone : 0; }
  bool equal() const { return cpu.logits_hash == gpu.logits_hash && cpu_ids == gpu_ids; }
  bool passed() const { return error.empty() && equal() && gpu.gpu && gpu.gpu->blocks > 0 && redone() == 0; }
};

struct Page {
  std::string machine, system, device_error;
  std::optional<gpu::DeviceInfo> device;
  gpu::ResidencyStats residency;
  double compile_seconds = 0;
  std::vector<CheckResult> checks;
  std::optional<selftest::Measurements> measured;
  std::string measure_error;
  std::string model;
  ModelRun run;
  std::vector<DiskSample> disk;

  bool software() const { return device && device->software; }
  bool passed() const {
    return device && run.passed() && measured && !checks.empty() &&
           std::all_of(checks.begin(), checks.end(), [](const CheckResult& c) { return c.passed(); });
  }
};

std::string machine_name() {
  const std::uint64_t memory = available_memory_bytes();
  return fmt::format("{}, {} CPUs, {} of memory available", cpu_model_name(), available_cpus(), human_bytes(memory));
}

std::string system_name() {
  utsname names{};
  if (uname(&names) != 0) return "not known";
  std::string text = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
#if defined(__APPLE__)
  char version[64] = {};
  std::size_t size = sizeof version - 1;
  if (sysctlbyname("kern.osproductversion", version, &size, nullptr, 0) == 0) text = fmt::format("macOS {} ({})", version, text);
#endif
  return text;
}

void check_device(gpu::Device& device, bool small, Page& page) {
  gpu::KernelSet kernels(device);
  auto bench = selftest::Workbench::create(kernels, small);
  if (!bench) {
    page.device_error = "its memory cannot be used: " + bench.error().message;
    return;
  }
  const FlushDenormals flush;
  for (const selftest::Check& check : selftest::all_checks()) {
    CheckResult result{check.name, {}, {}};
    if (auto compared = check.run(**bench))
      result.compared = *compared;
    else
      result.error = one_line(compared.error().message);
    page.checks.push_back(std::move(result));
  }
  if (auto measured = selftest::measure(**bench))
    page.measured = std::move(*measured);
  else
    page.measure_error = one_line(measured.error().message);
  page.residency = device.residency();
  page.compile_seconds = kernels.compile_seconds();
}

Result<void> run_model(const EngineOptions& options, std::int64_t tokens, ModelRun& run) {
  const auto generate_with = [&](GpuChoice choice, GenerateStats& stats, std::vector<std::int32_t>& ids) -> Result<void> {
    EngineOptions chosen = options;
    chosen.gpu = choice;
    COLIBRI_TRY(model, LoadedModel::open(chosen));
    if (choice != GpuChoice::kOff && model.engine->model().gpu() == nullptr)
      return fail("the model does not use the GPU: {}",
                  model.engine->notices().empty() ? "no reason is known" : model.engine->notices().back());
    const std::vector<std::int32_t> prompt = model.tokenizer.encode("Once upon a time, there was a little fox who", true);
    Session session(*model.engine);
    GenerateOptions generation;
    generation.sampling.temperature = 0;
    generation.max_tokens = tokens;
    COLIBRI_TRY(done, generate(session, prompt, generation, [&](std::int32_t id) {
                  ids.push_back(id);
                  return true;
                }));
    stats = done;
    return {};
  };
  COLIBRI_CHECK(generate_with(GpuChoice::kOff, run.cpu, run.cpu_ids));
  COLIBRI_CHECK(generate_with(options.gpu, run.gpu, run.gpu_ids));
  run.prompt_tokens = run.cpu.prompt_tokens;
  run.answer_tokens = run.cpu.decode_tokens;
  return {};
}

std::string verdict(const Page& page) {
  if (!page.device) return "NO GPU WAS CHECKED";
  return page.passed() ? "every bit agrees" : "NOT EVERYTHING AGREES: see the lines above";
}

void print_checks(const Page& page) {
  fmt::print("\nkernels against the scalar reference, bit for bit\n");
  if (!page.device_error.empty()) fmt::print("  NOT COMPARED: {}\n", page.device_error);
  for (const CheckResult& c : page.checks) {
    if (!c.error.empty())
      fmt::print("  {:<22} NOT COMPARED: {}\n", c.name, c.error);
    else
      fmt::print("  {:<22} {} shapes, {:>11} values, {} differing\n", c.name, c.compared.shapes, with_commas(c.compared.values),
                 with_commas(c.compared.differing));
  }
}

void print_model(const Page& page) {
  const ModelRun& run = page.run;
  fmt::print("\na whole model: {}\n", page.model);
  if (!run.error.empty()) {
    fmt::print("  NOT COMPARED: {}\n", run.error);
    return;
  }
  fmt::print("  {} prompt tokens, {} answer tokens; logits_hash CPU {:016x}, GPU {:016x}: {}\n", run.prompt_tokens,
             run.answer_tokens, run.cpu.logits_hash, run.gpu.logits_hash, run.equal() ? "equal" : "DIFFERENT");
  if (run.redone() > 0) fmt::print("  {} BLOCKS WERE LEFT TO THE CPU: {}\n", run.redone(), one_line(run.gpu.gpu_faults));
  if (!page.software()) fmt::print("  {}\n", describe_gpu(run.gpu));
}

void print_measurements(const Page& page) {
  if (page.software())
    fmt::print("\nmeasured ON THE SOFTWARE DEVICE: these times say nothing about any GPU\n");
  else
    fmt::print("\nmeasured on this GPU\n");
  if (!page.measured) {
    fmt::print("  not measured: {}\n", page.measure_error.empty() ? page.device_error : page.measure_error);
    return;
  }
  const selftest::Measurements& m = *page.measured;
  const auto micro = [](double seconds) { return fmt::format("{:.1f} us", seconds * 1e6); };
  fmt::print("  {:<22} {:>9.1f} GB/s (a block of {})\n", "reading memory", m.read_bytes_per_second * 1e-9,
             human_bytes(m.read_bytes));
  fmt::print("  {:<22} {:>12} (median of {})\n", "submit to known end", micro(m.submit_seconds), m.repeats);
  fmt::print("  {:<22} {:>12}\n", "one command buffer", micro(m.command_buffer_seconds));
  fmt::print("  {:<22} {:>12}\n", "one dispatch", micro(m.dispatch_seconds));
  fmt::print("  {:<22} {:>12}\n", "one barrier", micro(m.barrier_seconds));
  for (const selftest::FormatSpeed& p : m.products)
    fmt::print("  {:<22} {:>9.1f} GB/s, {:.0f} % of reading\n", fmt::format("decode, {}", format_name(p.format)),
               p.bytes_per_second * 1e-9, m.read_bytes_per_second > 0 ? 100 * p.bytes_per_second / m.read_bytes_per_second : 0.0);
  fmt::print("  {:<22} {:>10.2f} s\n", "compiling kernels", page.compile_seconds);
}

void print_disk(const Page& page) {
  fmt::print("\ndisk of the model, bytes that the page cache does not hold\n");
  if (page.disk.empty())
    fmt::print("  not known: too few bytes of the model are outside the page cache; --model DIR names a large one\n");
  for (const DiskSample& s : page.disk)
    fmt::print("  {:<9} {:<9} {:>3} in flight {:>8.2f} GB/s\n", backend_name(s.backend), s.direct ? "direct" : "buffered",
               s.in_flight, s.bytes_per_second * 1e-9);
}

void print_page(const Page& page) {
  fmt::print("coli {} selftest\n", COLIBRI_VERSION);
  if (page.software())
    fmt::print(
        "SOFTWARE DEVICE: the Metal kernels run on this machine's CPU. Bits are checked; times say nothing about any GPU.\n");
  fmt::print("machine   {}\nsystem    {}\n", page.machine, page.system);
  if (!page.device) {
    fmt::print("device    none: {}\n", page.device_error);
  } else {
    const gpu::DeviceInfo& d = *page.device;
    fmt::print("device    {} ({})\n", d.name, d.api);
    fmt::print("limits    longest buffer {}, working set {}, threadgroup memory {}; residency set {}\n",
               human_bytes(d.longest_buffer), human_bytes(d.working_set), human_bytes(d.threadgroup_bytes),
               d.residency_set ? fmt::format("in use ({} regions)", page.residency.allocations) : "not in use");
    print_checks(page);
    print_model(page);
    print_measurements(page);
  }
  print_disk(page);
  fmt::print("\nresult: {}\n", verdict(page));
}

nlohmann::json json_of(const Page& page) {
  nlohmann::json out = {{"version", COLIBRI_VERSION}, {"machine", page.machine}, {"system", page.system},
                        {"passed", page.passed()},    {"device", nullptr},       {"checks", nlohmann::json::array()},
                        {"model", nullptr},           {"measured", nullptr},     {"disk", nlohmann::json::array()}};
  if (!page.device_error.empty()) out["device_error"] = page.device_error;
  for (const DiskSample& s : page.disk)
    out["disk"].push_back({{"backend", backend_name(s.backend)},
                           {"direct", s.direct},
                           {"in_flight", s.in_flight},
                           {"gb_per_second", s.bytes_per_second * 1e-9}});
  if (!page.device) return out;
  const gpu::DeviceInfo& d = *page.device;
  out["device"] = {{"name", d.name},
                   {"api", d.api},
                   {"software", d.software},
                   {"residency_set", d.residency_set},
                   {"longest_buffer_bytes", d.longest_buffer},
                   {"working_set_bytes", d.working_set},
                   {"threadgroup_bytes", d.threadgroup_bytes}};
  for (const CheckResult& c : page.checks) {
    nlohmann::json check = {{"name", c.name}, {"passed", c.passed()}, {"error", nullptr}};
    if (c.error.empty())
      check.update({{"shapes", c.compared.shapes}, {"values", c.compared.values}, {"differing", c.compared.differing}});
    else
      check["error"] = c.error;
    out["checks"].push_back(check);
  }
  const ModelRun& run = page.run;
  out["model"] = {{"directory", page.model}, {"passed", run.passed()}, {"error", nullptr}};
  if (run.error.empty())
    out["model"].update({{"equal", run.equal()}, {"redone", run.redone()}, {"cpu", to_json(run.cpu)}, {"gpu", to_json(run.gpu)}});
  else
    out["model"]["error"] = run.error;
  if (!page.measured) {
    out["measure_error"] = page.measure_error;
    return out;
  }
  const selftest::Measurements& m = *page.measured;
  nlohmann::json products = nlohmann::json::object();
  for (const selftest::FormatSpeed& p : m.products) products[std::string(format_name(p.format))] = p.bytes_per_second * 1e-9;
  out["measured"] = {{"of_software_device", page.software()},  {"read_gb_per_second", m.read_bytes_per_second * 1e-9},
                     {"submit_seconds", m.submit_seconds},     {"command_buffer_seconds", m.command_buffer_seconds},
                     {"dispatch_seconds", m.dispatch_seconds}, {"barrier_seconds", m.barrier_seconds},
                     {"decode_gb_per_second", products},       {"compile_seconds", page.compile_seconds}};
  return out;
}

int run_selftest(const SelftestFlags& flags) {
  EngineFlags engine;
  engine.model = flags.model;
  engine.gpu = flags.gpu;
  engine.no_usage = true;
  auto options = engine.engine_options();
  if (!options) return fail_with(options.error());
  options->context = 512;
  options->probe_disk = false;
  auto checkpoint = Checkpoint::open(options->model);
  if (!checkpoint) return fail_with(checkpoint.error());
  auto chosen = choose_gpu(options->gpu);
  if (!chosen) return fail_with(chosen.error());

  Page page;
  page.machine = machine_name();
  page.system = system_name();
  page.model =
      options->model.filename().empty() ? options->model.parent_path().filename().string() : options->model.filename().string();
  std::vector<std::filesystem::path> files;
  for (const Checkpoint::Shard& shard : checkpoint->shards()) files.push_back(shard.path);
  page.disk = measure_disk(files, {});
  if (chosen->device == nullptr) {
    page.device_error = flags.gpu == "off" ? "--gpu off" : chosen->notice;
  } else {
    page.device = chosen->device->info();
    const bool small = flags.quick || page.software();
    check_device(*chosen->device, small, page);
    chosen->device.reset();  // the model opens its own
    if (auto run = run_model(*options, small ? 3 : 32, page.run); !run) page.run.error = one_line(run.error().message);
  }
  if (flags.json)
    print_json(json_of(page));
  else
    print_page(page);
  return page.passed() ? kExitOk : kExitFailed;
}

}  // namespace

Action declare_selftest(CommandLine& line) {
  auto flags = std::make_shared<SelftestFlags>();
  line.option("-m,--model", flags->model, "Model directory for the run and the disk; default: the demo model")
      .from_environment("COLI_MODEL");
  line.option("--gpu", flags->gpu,
              "metal, auto (a real GPU where there is one) or off. Elsewhere than on a Mac, metal is a software device for tests")
      .one_of({"metal", "auto", "off"})
      .shows_default();
  line.flag("--quick", flags->quick, "Small shapes and few tokens; always so on the software device");
  line.flag("--json", flags->json, "One JSON object instead of text");
  return [flags] { return run_selftest(*flags); };
}

}  // namespace colibri
