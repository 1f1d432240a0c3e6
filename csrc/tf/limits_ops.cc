// What the machine's memory gives, measured where the kernels run: for benchmarks only.
#include <chrono>
#include <random>
#include <vector>

#include "../core/limits.h"
#include "../core/pages.h"
#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Seconds of `repeats` gathers and of as many gather-modify-scatters of random rows in huge pages.
class MemoryLimitsOp final : public OpKernel {
 public:
  explicit MemoryLimitsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("row_bytes", &row_bytes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_bytes", &table_bytes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("count", &count_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("repeats", &repeats_));
    OP_REQUIRES(ctx, row_bytes_ > 0 && row_bytes_ % 64 == 0 && table_bytes_ / row_bytes_ >= count_,
                absl::InvalidArgumentError("rows must be multiples of 64 bytes, and more than are read"));
  }
  void Compute(OpKernelContext* ctx) override {
    char* table = static_cast<char*>(map_pages(static_cast<size_t>(table_bytes_), true));
    OP_REQUIRES(ctx, table != nullptr, absl::ResourceExhaustedError("out of memory for the table to measure with"));
    const TfExecutor executor(ctx);
    const int64_t num_rows = table_bytes_ / row_bytes_;
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({2, repeats_}), &out));
    auto seconds = out->matrix<double>();
    std::mt19937_64 random(1);
    std::vector<int64_t> rows(static_cast<size_t>(count_));
    for (int64_t k = 0; k < repeats_; ++k) {
      // Different rows, in random order: one out of every run of num_rows / count.
      const int64_t run = num_rows / count_;
      for (int64_t i = 0; i < count_; ++i) rows[i] = i * run + static_cast<int64_t>(random() % run);
      std::shuffle(rows.begin(), rows.end(), random);
      const auto start = std::chrono::steady_clock::now();
      volatile float sum = gather_limit(table, row_bytes_, rows.data(), count_, executor);
      (void)sum;
      const auto middle = std::chrono::steady_clock::now();
      modify_limit(table, row_bytes_, rows.data(), count_, executor);
      const auto end = std::chrono::steady_clock::now();
      seconds(0, k) = std::chrono::duration<double>(middle - start).count();
      seconds(1, k) = std::chrono::duration<double>(end - middle).count();
    }
    unmap_pages(table, static_cast<size_t>(table_bytes_));
  }

 private:
  int64_t row_bytes_, table_bytes_, count_, repeats_;
};

REGISTER_OP("DembMemoryLimits")
    .Output("seconds: double")
    .Attr("row_bytes: int")
    .Attr("table_bytes: int")
    .Attr("count: int")
    .Attr("repeats: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      int64_t repeats;
      TF_RETURN_IF_ERROR(c->GetAttr("repeats", &repeats));
      c->set_output(0, c->Matrix(2, repeats));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembMemoryLimits").Device(tensorflow::DEVICE_CPU), MemoryLimitsOp);

}  // namespace
}  // namespace demb
