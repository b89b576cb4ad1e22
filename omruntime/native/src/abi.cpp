// The C interface over the classes behind it.
#include <cstring>
#include <memory>
#include <string>

#include "matrix.h"
#include "native.h"
#include "program.h"
#include "thread_pool.h"

using namespace omserve;

struct om_pool {
  ThreadPool threads;
};
struct om_program {
  struct Step {
    void (*run)(const Call&, ThreadPool&);
    Call call;
  };
  std::vector<Step> steps;
};

namespace {

thread_local std::string last_error;

const char* failure(std::string text) {
  last_error = std::move(text);
  return last_error.c_str();
}

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

const KernelTable* best_table() {
  if (kAvx512Kernels != nullptr && has_avx512()) return kAvx512Kernels;
  if (kAvx2Kernels != nullptr && has_avx2()) return kAvx2Kernels;
  return kBaselineKernels;
}

const KernelTable*& table() {
  static const KernelTable* chosen = best_table();
  return chosen;
}

const Kernel* find_kernel(const char* name) {
  for (int i = 0; i < table()->num_kernels; ++i)
    if (std::strcmp(table()->kernels[i].name, name) == 0) return &table()->kernels[i];
  return nullptr;
}

}  // namespace

int32_t om_abi_version() { return OM_ABI_VERSION; }

const char* om_instruction_set() { return table()->instruction_set; }

const char* om_choose_instruction_set(const char* name) {
  for (const auto* each : {kAvx512Kernels, kAvx2Kernels, kBaselineKernels}) {
    if (each == nullptr || std::strcmp(each->instruction_set, name) != 0) continue;
    if ((each == kAvx512Kernels && !has_avx512()) || (each == kAvx2Kernels && !has_avx2())) break;
    table() = each;
    return nullptr;
  }
  return failure(std::string("this CPU has no instruction set ") + name);
}

om_pool* om_pool_new(int32_t num_threads) { return new om_pool{ThreadPool(num_threads)}; }

void om_pool_free(om_pool* pool) { delete pool; }

const char* om_matrix_pack(const om_tensor* values, const float* scales, om_matrix** matrix) {
  if (values->rank != 2) return failure("a matrix to pack has rank 2");
  if (values->dtype > OM_INT8) return failure("a matrix to pack is float32, bfloat16 or int8");
  auto packed = pack(*values, scales, table()->panel_width);
  if (packed == nullptr) return failure("memory is short");
  *matrix = reinterpret_cast<om_matrix*>(packed.release());
  return nullptr;
}

void om_matrix_free(om_matrix* matrix) { delete reinterpret_cast<Matrix*>(matrix); }

om_program* om_program_new() { return new om_program; }

void om_program_free(om_program* program) { delete program; }

const char* om_program_append(om_program* program, const char* name, const om_tensor* tensors,
                              int32_t num_tensors, const double* numbers, int32_t num_numbers) {
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr) return failure(std::string("there is no kernel ") + name);
  Call call{{tensors, tensors + num_tensors}, {numbers, numbers + num_numbers}};
  if (const char* problem = kernel->check(call)) return failure(problem);
  program->steps.push_back({kernel->run, std::move(call)});
  return nullptr;
}

void om_program_run(const om_program* program, om_pool* pool) {
  for (const auto& step : program->steps) step.run(step.call, pool->threads);
}

void om_draw_rows(om_draw* rows, int64_t num_rows, int64_t num_scores, om_pool* pool) {
  const auto draw = table()->sampling.draw;
  pool->threads.run(num_rows, [=](int64_t i) { draw(rows[i], num_scores, row_scratch(num_scores)); });
}

void om_score_rows(om_score* rows, int64_t num_rows, int64_t num_scores, om_pool* pool) {
  const auto score = table()->sampling.score;
  pool->threads.run(num_rows,
                    [=](int64_t i) { score(rows[i], num_scores, row_scratch(num_scores)); });
}
