// Tables' memory: made, widened so that slots lie beside rows, read and written in blocks.
#include <algorithm>
#include <cstring>

#include "../core/pages.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "owned_buffer.h"
#include "storage.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "variables.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::shape_inference::InferenceContext;

class NewTableOp final : public OpKernel {
 public:
  explicit NewTableOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("fill", &fill_));
    OP_REQUIRES(ctx, fill_ == 0.0f || dtype_ == tensorflow::DT_FLOAT,
                absl::InvalidArgumentError("`fill` must be 0 for 16-bit floats"));
  }
  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES(ctx, ctx->input(0).dims() == 1, absl::InvalidArgumentError("`shape` must be a vector"));
    const auto shape = ctx->input(0).vec<int64_t>();
    OP_REQUIRES(ctx, shape.size() == 2 && shape(0) >= 0 && shape(1) >= 0,
                absl::InvalidArgumentError("`shape` must be [rows, columns], neither negative"));
    Tensor table;
    OP_REQUIRES_OK(ctx, new_storage(dtype_, TensorShape({shape(0), shape(1)}), true, &table));
    if (fill_ != 0.0f) std::fill_n(static_cast<float*>(table.data()), table.NumElements(), fill_);
    ctx->set_output(0, table);
  }

 private:
  tensorflow::DataType dtype_;
  float fill_ = 0.0f;
};

// Rows become `columns` wide. The first `keep` stay; float32 slots, by where they begin (bytes), how many values they
// have and which value they start with, follow; the rest is zeros.
class ResizeRowsOp final : public OpKernel {
 public:
  explicit ResizeRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep", &keep_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("slot_offsets", &offsets_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("slot_widths", &widths_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("slot_values", &values_));
    OP_REQUIRES(ctx, widths_.size() == offsets_.size() && values_.size() == offsets_.size(),
                absl::InvalidArgumentError("the attributes must have one entry a slot"));
  }
  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<Var> var;
    OP_REQUIRES_OK(ctx, tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), &var));
    tensorflow::mutex_lock lock(*var->mu());
    Tensor old = *var->tensor();
    const size_t element = static_cast<size_t>(tensorflow::DataTypeSize(old.dtype()));
    OP_REQUIRES(ctx, old.dims() == 2 && keep_ <= old.dim_size(1) && keep_ <= columns_,
                absl::InvalidArgumentError(absl::StrCat("cannot keep ", keep_, " columns of ", old.shape().DebugString(),
                                                        " in rows of ", columns_)));
    for (size_t s = 0; s < offsets_.size(); ++s) {
      OP_REQUIRES(ctx, offsets_[s] >= 0 && offsets_[s] + 4 * widths_[s] <= columns_ * static_cast<int64_t>(element),
                  absl::InvalidArgumentError("slots must lie inside the rows"));
    }
    Tensor wide;
    // Its pages come as the rows are moved, while those of the old rows go.
    OP_REQUIRES_OK(ctx, new_storage(old.dtype(), TensorShape({old.dim_size(0), columns_}), false, &wide));
    *var->tensor() = wide;
    // The last reference may give its pages back while it is read: a table is never there twice as a whole.
    const bool last = old.RefCountIsOne();
    const char* from = static_cast<const char*>(old.data());
    char* to = static_cast<char*>(wide.data());
    const size_t old_row = static_cast<size_t>(old.dim_size(1)) * element, new_row = static_cast<size_t>(columns_) * element;
    size_t dropped = 0;
    for (int64_t r = 0; r < old.dim_size(0); ++r) {
      std::memcpy(to + r * new_row, from + r * old_row, static_cast<size_t>(keep_) * element);
      for (size_t s = 0; s < offsets_.size(); ++s) {
        for (int64_t k = 0; k < widths_[s]; ++k) {
          std::memcpy(to + r * new_row + offsets_[s] + 4 * k, &values_[s], sizeof(float));
        }
      }
      if (last && (r + 1) * old_row - dropped >= (size_t{64} << 20)) {
        drop_pages(const_cast<char*>(from) + dropped, (r + 1) * old_row - dropped);
        dropped = ((r + 1) * old_row) >> 21 << 21;
      }
    }
    var->copy_on_read_mode.store(true);
  }

 private:
  int64_t columns_, keep_;
  std::vector<int64_t> offsets_, widths_;
  std::vector<float> values_;
};

struct BlockAttrs {
  explicit BlockAttrs(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("offset", &offset));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("width", &width));
  }
  // The bytes of one row's block, and where it begins.
  absl::Status check(const Tensor& table, tensorflow::DataType dtype) const {
    const int64_t element = tensorflow::DataTypeSize(dtype);
    const int64_t row = table.dims() == 2 ? table.dim_size(1) * tensorflow::DataTypeSize(table.dtype()) : 0;
    if (offset < 0 || width < 0 || offset + width * element > row) {
      return absl::InvalidArgumentError(absl::StrCat(width, " columns at byte ", offset,
                                                     " must lie inside the rows. Received: variable of shape ",
                                                     table.shape().DebugString()));
    }
    return absl::OkStatus();
  }
  int64_t offset, width;
};

absl::Status check_rows(int64_t start, int64_t count, const Tensor& table) {
  if (start >= 0 && count >= 0 && start <= table.dim_size(0) && count <= table.dim_size(0) - start) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows [", start, ", ", start + count, ") must lie inside [0, ",
                                                 table.dim_size(0), ")"));
}

class ReadBlockOp final : public OpKernel {
 public:
  explicit ReadBlockOp(OpKernelConstruction* ctx) : OpKernel(ctx), block_(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    OP_REQUIRES_OK(ctx, variables.open(ctx, 0, 1, Access::kRead));
    const Tensor& table = variables.tensor(0);
    OP_REQUIRES(ctx, ctx->input(1).NumElements() == 1 && ctx->input(2).NumElements() == 1,
                absl::InvalidArgumentError("`start` and `count` must be scalars"));
    const int64_t start = ctx->input(1).scalar<int64_t>()(), count = ctx->input(2).scalar<int64_t>()();
    OP_REQUIRES_OK(ctx, block_.check(table, ctx->expected_output_dtype(0)));
    OP_REQUIRES_OK(ctx, check_rows(start, count, table));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({count, block_.width}), &out));
    const size_t row = table.dim_size(1) * tensorflow::DataTypeSize(table.dtype());
    const size_t bytes = block_.width * tensorflow::DataTypeSize(out->dtype());
    const char* from = static_cast<const char*>(table.data()) + start * row + block_.offset;
    for (int64_t r = 0; r < count; ++r) std::memcpy(static_cast<char*>(out->data()) + r * bytes, from + r * row, bytes);
  }

 private:
  BlockAttrs block_;
};

class WriteBlockOp final : public OpKernel {
 public:
  explicit WriteBlockOp(OpKernelConstruction* ctx) : OpKernel(ctx), block_(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    OP_REQUIRES_OK(ctx, variables.open(ctx, 0, 1, Access::kWrite));
    Tensor& table = variables.tensor(0);
    OP_REQUIRES(ctx, ctx->input(1).NumElements() == 1, absl::InvalidArgumentError("`start` must be a scalar"));
    const int64_t start = ctx->input(1).scalar<int64_t>()();
    const Tensor& values = ctx->input(2);
    OP_REQUIRES(ctx, values.dims() == 2 && values.dim_size(1) == block_.width,
                absl::InvalidArgumentError(absl::StrCat("`values` must be of shape [rows, ", block_.width,
                                                        "]. Received: shape ", values.shape().DebugString())));
    OP_REQUIRES_OK(ctx, block_.check(table, values.dtype()));
    OP_REQUIRES_OK(ctx, check_rows(start, values.dim_size(0), table));
    const size_t row = table.dim_size(1) * tensorflow::DataTypeSize(table.dtype());
    const size_t bytes = block_.width * tensorflow::DataTypeSize(values.dtype());
    char* to = static_cast<char*>(table.data()) + start * row + block_.offset;
    const char* from = static_cast<const char*>(values.data());
    for (int64_t r = 0; r < values.dim_size(0); ++r) std::memcpy(to + r * row, from + r * bytes, bytes);
  }

 private:
  BlockAttrs block_;
};

REGISTER_OP("DembNewTable")
    .Input("shape: int64")
    .Output("table: dtype")
    .Attr("dtype: {float, bfloat16, half}")
    .Attr("fill: float = 0.0")
    .SetIsStateful()  // every call makes memory of its own: never folded, never shared
    .SetShapeFn([](InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle out;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(0, &out));
      c->set_output(0, out);
      return absl::OkStatus();
    });

REGISTER_OP("DembResizeRows")
    .Input("table: resource")
    .Attr("columns: int")
    .Attr("keep: int")
    .Attr("slot_offsets: list(int)")
    .Attr("slot_widths: list(int)")
    .Attr("slot_values: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("DembReadBlock")
    .Input("table: resource")
    .Input("start: int64")
    .Input("count: int64")
    .Output("values: dtype")
    .Attr("dtype: {float, bfloat16, half}")
    .Attr("offset: int")
    .Attr("width: int")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t width;
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, width));
      return absl::OkStatus();
    });

REGISTER_OP("DembWriteBlock")
    .Input("table: resource")
    .Input("start: int64")
    .Input("values: dtype")
    .Attr("dtype: {float, bfloat16, half}")
    .Attr("offset: int")
    .Attr("width: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("DembNewTable").Device(tensorflow::DEVICE_CPU), NewTableOp);
REGISTER_KERNEL_BUILDER(Name("DembResizeRows").Device(tensorflow::DEVICE_CPU), ResizeRowsOp);
REGISTER_KERNEL_BUILDER(Name("DembReadBlock").Device(tensorflow::DEVICE_CPU), ReadBlockOp);
REGISTER_KERNEL_BUILDER(Name("DembWriteBlock").Device(tensorflow::DEVICE_CPU), WriteBlockOp);

}  // namespace

absl::Status new_storage(tensorflow::DataType dtype, const TensorShape& shape, bool faulted, Tensor* out) {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * tensorflow::DataTypeSize(dtype);
  if (bytes < (size_t{1} << 20)) {  // small tables need no huge page of their own
    Tensor small(dtype, shape);
    std::memset(small.data(), 0, small.TotalBytes());
    *out = small;
    return absl::OkStatus();
  }
  void* data = map_pages(bytes, faulted);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory for a table of shape ", shape.DebugString(), ", ",
                                                     bytes, " bytes"));
  }
  auto* buffer = new OwnedBuffer(data, bytes, bytes, unmap_pages, "distributed_embeddings_pages");
  *out = Tensor(dtype, shape, buffer);
  buffer->Unref();
  return absl::OkStatus();
}

}  // namespace demb
