// What the machine's memory gives, measured where the kernels run: for benchmarks only.
#include "../core/limits.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"
#include "variables.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Rows of `row_bytes` bytes each of a table of any other shape: read and summed up, or changed in place.
class RandomRowsOp final : public OpKernel {
 public:
  explicit RandomRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("row_bytes", &row_bytes_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("modify", &modify_));
    OP_REQUIRES(ctx, row_bytes_ > 0 && row_bytes_ % 64 == 0,
                absl::InvalidArgumentError(absl::StrCat("`row_bytes` must be a positive multiple of 64. Received: row_bytes=",
                                                        row_bytes_)));
  }
  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    OP_REQUIRES_OK(ctx, variables.open(ctx, 0, 1, modify_ ? Access::kWrite : Access::kRead));
    const Tensor& table = variables.tensor(0);
    const Tensor& rows = ctx->input(1);
    Tensor* sum = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &sum));
    const RandomRows job{static_cast<char*>(table.data()), static_cast<int64_t>(table.TotalBytes()) / row_bytes_, row_bytes_,
                         rows.flat<int64_t>().data(), rows.NumElements()};
    float* total = sum->flat<float>().data();
    *total = 0.0f;
    const TfExecutor executor(ctx);
    OP_REQUIRES(ctx, modify_ ? modify_limit(job, executor) : gather_limit(job, executor, total),
                absl::InvalidArgumentError(absl::StrCat("`rows` must lie in [0, ", job.num_rows, "), the table's rows of ",
                                                        row_bytes_, " bytes")));
  }

 private:
  int64_t row_bytes_ = 0;
  bool modify_ = false;
};

REGISTER_OP("DembRandomRows")
    .Input("table: resource")
    .Input("rows: int64")
    .Output("sum: float")
    .Attr("row_bytes: int")
    .Attr("modify: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_KERNEL_BUILDER(Name("DembRandomRows").Device(tensorflow::DEVICE_CPU), RandomRowsOp);

}  // namespace
}  // namespace demb
