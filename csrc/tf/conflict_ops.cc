// DembAnnounce: which rows of a batch conflict with the batch before it. DembSplitLanes: the rows apart by that.
// DembPackMasks, DembUnpackMasks: what the ranks tell each other of it.
#include <string>
#include <vector>

#include "../core/conflict.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tf_executor.h"
#include "variables.h"
#include "wire_rows.h"

namespace demb {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

absl::Status expect_vector(OpKernelContext* ctx, int index, const char* name, int64_t elements) {
  const Tensor& input = ctx->input(index);
  if (input.dims() == 1 && (elements < 0 || input.NumElements() == elements)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", name, "` must be of shape [",
                                                 elements < 0 ? "n" : absl::StrCat(elements), "]. Received: shape ",
                                                 input.shape().DebugString()));
}

class AnnounceOp final : public OpKernel {
 public:
  explicit AnnounceOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_lanes", &num_lanes_));
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<Stamps> stamps;
    WireRows now, before;
    OP_REQUIRES_OK(ctx, variables.open(ctx, 0, num_lanes_, Access::kWrite));
    OP_REQUIRES_OK(ctx, read_stamps(variables, &stamps));
    OP_REQUIRES_OK(ctx, read_wire_rows(ctx, num_lanes_, num_lanes_, "rows", "counts", &now));
    OP_REQUIRES_OK(ctx, read_wire_rows(ctx, num_lanes_ + 3, num_lanes_, "previous_rows", "previous_counts", &before));
    OP_REQUIRES_OK(ctx, check(stamps, now, "rows"));
    OP_REQUIRES_OK(ctx, check(stamps, before, "previous_rows"));
    const Tensor& batch = ctx->input(num_lanes_ + 2);
    OP_REQUIRES(ctx, batch.dims() == 0, absl::InvalidArgumentError(absl::StrCat(
                         "`batch` must be a scalar. Received: shape ", batch.shape().DebugString())));
    Tensor *forward = nullptr, *backward = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, ctx->input(num_lanes_).shape(), &forward));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, ctx->input(num_lanes_ + 3).shape(), &backward));
    announce(stamps.data(), batch.scalar<int64_t>()(), now, forward->flat<bool>().data(), before,
             backward->flat<bool>().data(), TfExecutor(ctx));
  }

 private:
  absl::Status read_stamps(const LockedVariables& variables, std::vector<Stamps>* stamps) const {
    for (int l = 0; l < num_lanes_; ++l) {
      Tensor& tensor = variables.tensor(l);
      if (tensor.dtype() != tensorflow::DT_INT32 || tensor.dims() != 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "`stamps` must be int32 variables of shape [rows of the lane's block]. Received: lane ", l, " with ",
            tensorflow::DataTypeString(tensor.dtype()), " of shape ", tensor.shape().DebugString()));
      }
      Stamps own{tensor.flat<int32_t>().data(), tensor.NumElements()};
      for (int k = 0; k < l; ++k) {
        if ((*stamps)[k].data == own.data && own.num_rows > 0) {
          return absl::InvalidArgumentError(absl::StrCat("`stamps` must be a variable of its own for every lane. Received: "
                                                         "one for lanes ", k, " and ", l));
        }
      }
      stamps->push_back(own);
    }
    return absl::OkStatus();
  }

  // Before the first row is stamped: a call that fails has changed nothing.
  static absl::Status check(const std::vector<Stamps>& stamps, const WireRows& asked, const char* name) {
    int64_t lane;
    const int64_t at = first_outside(stamps.data(), asked, &lane);
    if (at < 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`", name, "` must lie in their lanes' blocks. Received: row ",
                                                   asked.rows[at], " of lane ", lane, ", whose block has ",
                                                   stamps[lane].num_rows, " rows"));
  }

  int num_lanes_;
};

// Inputs: rows, counts, conflicting.
class SplitLanesOp final : public OpKernel {
 public:
  explicit SplitLanesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    WireRows asked;
    OP_REQUIRES_OK(ctx, read_wire_rows(ctx, 0, -1, "rows", "counts", &asked));
    const int64_t rows = ctx->input(0).NumElements();
    OP_REQUIRES_OK(ctx, expect_vector(ctx, 2, "conflicting", rows));
    const bool* marks = ctx->input(2).flat<bool>().data();
    const int64_t marked = count_marks(marks, rows);
    Tensor* out[4];
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({rows - marked}), &out[0]));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, ctx->input(1).shape(), &out[1]));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, TensorShape({marked}), &out[2]));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(3, ctx->input(1).shape(), &out[3]));
    int64_t* to[4];
    for (int k = 0; k < 4; ++k) to[k] = out[k]->flat<int64_t>().data();
    split_rows(asked, marks, to[0], to[1], to[2], to[3]);
  }
};

// The inputs `at` and `at` + `step`: how many marks of each kind a rank has.
absl::Status read_sizes(OpKernelContext* ctx, int at, int step, MarkSizes* sizes) {
  TF_RETURN_IF_ERROR(expect_vector(ctx, at, "forward_sizes", -1));
  TF_RETURN_IF_ERROR(expect_vector(ctx, at + step, "backward_sizes", ctx->input(at).NumElements()));
  *sizes = {ctx->input(at).flat<int64_t>().data(), ctx->input(at + step).flat<int64_t>().data(),
            ctx->input(at).NumElements()};
  return absl::OkStatus();
}

// Inputs: forward, forward_sizes, backward, backward_sizes.
class PackMasksOp final : public OpKernel {
 public:
  explicit PackMasksOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    const Tensor &forward = ctx->input(0), &backward = ctx->input(2);
    MarkSizes sizes;
    OP_REQUIRES_OK(ctx, expect_vector(ctx, 0, "forward", -1));
    OP_REQUIRES_OK(ctx, expect_vector(ctx, 2, "backward", -1));
    OP_REQUIRES_OK(ctx, read_sizes(ctx, 1, 2, &sizes));
    OP_REQUIRES_OK(ctx, check_sizes_add_up(sizes.forward, sizes.ranks, forward.NumElements(), "forward_sizes", "`forward`"));
    OP_REQUIRES_OK(ctx,
                   check_sizes_add_up(sizes.backward, sizes.ranks, backward.NumElements(), "backward_sizes", "`backward`"));
    Tensor *packed = nullptr, *splits = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({sizes.ranks}), &splits));
    int64_t bytes = 0;
    for (int64_t r = 0; r < sizes.ranks; ++r) bytes += splits->vec<int64_t>()(r) = sizes.bytes(r);
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({bytes}), &packed));
    pack_marks(sizes, forward.flat<bool>().data(), backward.flat<bool>().data(), packed->flat<uint8_t>().data());
  }
};

// Inputs: packed, forward_sizes, backward_sizes.
class UnpackMasksOp final : public OpKernel {
 public:
  explicit UnpackMasksOp(OpKernelConstruction* ctx) : OpKernel(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    MarkSizes sizes;
    OP_REQUIRES_OK(ctx, expect_vector(ctx, 0, "packed", -1));
    OP_REQUIRES_OK(ctx, read_sizes(ctx, 1, 1, &sizes));
    int64_t count[2] = {}, bytes = 0;
    // A size that is negative or absurd never comes to the sum.
    const int64_t most = 8 * ctx->input(0).NumElements();
    bool fits = true;
    for (int64_t r = 0; r < sizes.ranks && fits; ++r) {
      fits = sizes.forward[r] >= 0 && sizes.backward[r] >= 0 && sizes.forward[r] <= most && sizes.backward[r] <= most;
      if (!fits) break;
      count[0] += sizes.forward[r];
      count[1] += sizes.backward[r];
      bytes += sizes.bytes(r);
    }
    OP_REQUIRES(ctx, fits && bytes == ctx->input(0).NumElements(),
                absl::InvalidArgumentError(absl::StrCat(
                    "`packed` must have, for every rank, the bytes of `forward_sizes` bits and of `backward_sizes` bits. "
                    "Received: ", ctx->input(0).NumElements(), " bytes, which the sizes do not fill exactly")));
    Tensor *forward = nullptr, *backward = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({count[0]}), &forward));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, TensorShape({count[1]}), &backward));
    unpack_marks(sizes, ctx->input(0).flat<uint8_t>().data(), forward->flat<bool>().data(), backward->flat<bool>().data());
  }
};

REGISTER_OP("DembAnnounce")
    .Input("stamps: num_lanes * resource")
    .Input("rows: int64")
    .Input("counts: int64")
    .Input("batch: int64")
    .Input("previous_rows: int64")
    .Input("previous_counts: int64")
    .Output("forward: bool")
    .Output("backward: bool")
    .Attr("num_lanes: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int lanes;
      TF_RETURN_IF_ERROR(c->GetAttr("num_lanes", &lanes));
      c->set_output(0, c->input(lanes));
      c->set_output(1, c->input(lanes + 3));
      return absl::OkStatus();
    });

REGISTER_OP("DembSplitLanes")
    .Input("rows: int64")
    .Input("counts: int64")
    .Input("conflicting: bool")
    .Output("free_rows: int64")
    .Output("free_counts: int64")
    .Output("conflicting_rows: int64")
    .Output("conflicting_counts: int64")
    .SetShapeFn([](InferenceContext* c) {
      for (int k : {0, 2}) c->set_output(k, c->Vector(InferenceContext::kUnknownDim));
      for (int k : {1, 3}) c->set_output(k, c->input(1));
      return absl::OkStatus();
    });

REGISTER_OP("DembPackMasks")
    .Input("forward: bool")
    .Input("forward_sizes: int64")
    .Input("backward: bool")
    .Input("backward_sizes: int64")
    .Output("packed: uint8")
    .Output("splits: int64")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    });

REGISTER_OP("DembUnpackMasks")
    .Input("packed: uint8")
    .Input("forward_sizes: int64")
    .Input("backward_sizes: int64")
    .Output("forward: bool")
    .Output("backward: bool")
    .SetShapeFn([](InferenceContext* c) {
      for (int k : {0, 1}) c->set_output(k, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembAnnounce").Device(tensorflow::DEVICE_CPU), AnnounceOp);
REGISTER_KERNEL_BUILDER(Name("DembSplitLanes").Device(tensorflow::DEVICE_CPU), SplitLanesOp);
REGISTER_KERNEL_BUILDER(Name("DembPackMasks").Device(tensorflow::DEVICE_CPU), PackMasksOp);
REGISTER_KERNEL_BUILDER(Name("DembUnpackMasks").Device(tensorflow::DEVICE_CPU), UnpackMasksOp);

}  // namespace
}  // namespace demb
