// DembAssemble: the vectors that other ranks have sent, straight out of the receive buffer into the features' outputs;
// and its gradient, straight into the send buffer.
#include <algorithm>
#include <vector>

#include "../core/lookup.h"
#include "../core/occurrences.h"
#include "../core/sums.h"
#include "../core/weights_gradient.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "features.h"
#include "pool_tensor.h"
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
using tensorflow::shape_inference::InferenceContext;

// One lane of a table in the flat buffer. Pieces of rows of a table cut by columns stand at `column`; pieces of a table
// cut by rows follow each other from `row` on.
struct Lane {
  int64_t offset, rows, width, column, row;
};

// The lanes of each table: attributes lane_tables, lane_widths, lane_columns, lane_shards (by lane: which of the table's
// shards it is), dims (by table); input lane_rows int64 [lanes], the rows in each lane. Shards of rows follow each other
// in the order of their numbers, wherever in the buffer they are.
class Lanes {
 public:
  absl::Status init(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("lane_tables", &tables_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("lane_widths", &widths_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("lane_columns", &columns_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("lane_shards", &shards_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("dims", &dims));
    if (widths_.size() != tables_.size() || shards_.size() != tables_.size() || columns_.size() != tables_.size()) {
      return absl::InvalidArgumentError("the attributes must have one entry a lane");
    }
    for (size_t l = 0; l < tables_.size(); ++l) {
      if (tables_[l] < 0 || static_cast<size_t>(tables_[l]) >= dims.size() || columns_[l] < 0 || widths_[l] < 1 ||
          columns_[l] + widths_[l] > dims[tables_[l]]) {
        return absl::InvalidArgumentError("a lane must hold columns of a table that is there");
      }
    }
    return absl::OkStatus();
  }

  // By table; elements: of all lanes together.
  absl::Status read(const Tensor& lane_rows, std::vector<std::vector<Lane>>* by_table, int64_t* elements) const {
    if (lane_rows.NumElements() != static_cast<int64_t>(tables_.size())) {
      return absl::InvalidArgumentError("`lane_rows` must have one number a lane");
    }
    by_table->assign(dims.size(), {});
    *elements = 0;
    for (size_t l = 0; l < tables_.size(); ++l) {
      std::vector<Lane>& own = (*by_table)[tables_[l]];
      const int64_t rows = lane_rows.flat<int64_t>()(static_cast<int64_t>(l));
      if (rows < 0) return absl::InvalidArgumentError("`lane_rows` must not be negative");
      const bool by_rows = widths_[l] == dims[tables_[l]];
      int64_t row = 0;
      for (size_t k = 0; by_rows && k < tables_.size(); ++k) {
        if (tables_[k] == tables_[l] && shards_[k] < shards_[l]) row += lane_rows.flat<int64_t>()(static_cast<int64_t>(k));
      }
      if (!by_rows && !own.empty() && own[0].rows != rows) {
        return absl::InvalidArgumentError("lanes of a table cut by columns must have as many rows each");
      }
      own.push_back({*elements, rows, widths_[l], columns_[l], row});
      *elements += rows * widths_[l];
    }
    return absl::OkStatus();
  }

  std::vector<int64_t> dims;

 private:
  std::vector<int32_t> tables_, shards_;
  std::vector<int64_t> widths_, columns_;
};

int64_t rows_of(const std::vector<Lane>& lanes) {
  int64_t rows = 0;
  for (const Lane& lane : lanes) rows = std::max(rows, lane.row + lane.rows);
  return rows;
}

// Lanes to whole rows and back. A table in one lane is read and written where it is.
template <bool JOIN>
void move_lanes(const std::vector<Lane>& lanes, int64_t dim, float* flat, float* whole) {
  for (const Lane& lane : lanes) {
    for (int64_t r = 0; r < lane.rows; ++r) {
      float* piece = flat + lane.offset + r * lane.width;
      float* row = whole + (lane.row + r) * dim + lane.column;
      JOIN ? std::copy(piece, piece + lane.width, row) : std::copy(row, row + lane.width, piece);
    }
  }
}

// The rows received of all tables, whole.
class Replies {
 public:
  Replies(const std::vector<std::vector<Lane>>& by_table, const std::vector<int64_t>& dims, const float* flat,
          const Executor& executor) {
    tables.resize(dims.size());
    for (size_t t = 0; t < dims.size(); ++t) {
      const std::vector<Lane>& lanes = by_table[t];
      float* data = lanes.empty() ? nullptr : const_cast<float*>(flat) + lanes[0].offset;
      if (lanes.size() > 1) {
        joined_.emplace_back(rows_of(lanes) * dims[t]);
        data = joined_.back().get();
      }
      tables[t] = {reinterpret_cast<char*>(data), dims[t] * 4, rows_of(lanes), static_cast<int32_t>(dims[t]),
                   DType::kFloat32};
    }
    executor.run(static_cast<int64_t>(dims.size()), [&](int64_t t) {
      if (by_table[t].size() > 1) {
        move_lanes<true>(by_table[t], dims[t], const_cast<float*>(flat), reinterpret_cast<float*>(tables[t].data));
      }
    });
  }
  std::vector<Table> tables;

 private:
  std::vector<Scratch<float>> joined_;
};

// Inputs: replies float [n], lane_rows; then the features, whose ids are positions among their table's rows.
class LanesToFeatures : public OpKernel {
 protected:
  struct Given {
    std::vector<std::vector<Lane>> by_table;
    std::vector<Bags> bags;
    int64_t elements;
  };

  explicit LanesToFeatures(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, lanes_.init(ctx));
    OP_REQUIRES_OK(ctx, features_.init(ctx, *this, lanes_.dims.size()));
  }

  absl::Status read(OpKernelContext* ctx, Given* given) const {
    TF_RETURN_IF_ERROR(lanes_.read(ctx->input(1), &given->by_table, &given->elements));
    TF_RETURN_IF_ERROR(features_.bags(ctx, &given->bags));
    if (ctx->input(0).NumElements() == given->elements) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("`replies` must have ", given->elements, " elements. Received: ",
                                                   ctx->input(0).NumElements()));
  }

  Replies replies(OpKernelContext* ctx, const Given& given, const Executor& executor) const {
    return Replies(given.by_table, lanes_.dims, ctx->input(0).flat<float>().data(), executor);
  }

  FeatureAttrs features_;
  Lanes lanes_;
};

class AssembleOp final : public LanesToFeatures {
 public:
  explicit AssembleOp(OpKernelConstruction* ctx) : LanesToFeatures(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    Given given;
    OP_REQUIRES_OK(ctx, read(ctx, &given));
    const TfExecutor executor(ctx);
    const Replies received = replies(ctx, given, executor);
    std::vector<LookupJob> jobs;
    for (int f = 0; f < features_.count(); ++f) {
      const Table& table = received.tables[features_.table_of[f]];
      Tensor* out = nullptr;
      OP_REQUIRES_OK(ctx, allocate_pooled(ctx, f, features_.output_shape(ctx, f, table.dim), &out));
      jobs.push_back({table, given.bags[f], out->flat<float>().data(), table.dim, nullptr});
    }
    look_up(jobs.data(), static_cast<int64_t>(jobs.size()), InvalidIds::kZero, executor);
  }
};

// Further inputs: the gradients of the features. Outputs: the gradient of the replies, and of the weights.
class AssembleGradientOp final : public LanesToFeatures {
 public:
  explicit AssembleGradientOp(OpKernelConstruction* ctx) : LanesToFeatures(ctx) {}
  void Compute(OpKernelContext* ctx) override {
    Given given;
    tensorflow::OpInputList grads;
    OP_REQUIRES_OK(ctx, read(ctx, &given));
    OP_REQUIRES_OK(ctx, ctx->input_list("grads", &grads));
    for (int f = 0; f < features_.count(); ++f) {
      OP_REQUIRES(ctx, grads[f].NumElements() == given.bags[f].num_bags * lanes_.dims[features_.table_of[f]],
                  absl::InvalidArgumentError("the gradient must have the shape of the output"));
    }
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, allocate_pooled(ctx, 0, TensorShape({given.elements}), &out));
    const TfExecutor executor(ctx);
    OP_REQUIRES_OK(ctx, sum(given, grads, out->flat<float>().data(), executor));
    OP_REQUIRES_OK(ctx, weights(ctx, given, grads, executor));
  }

 private:
  absl::Status sum(const Given& given, const tensorflow::OpInputList& grads, float* flat,
                   const Executor& executor) const {
    const size_t tables = lanes_.dims.size();
    std::vector<std::vector<GradientSource>> sources(tables);
    for (int f = 0; f < features_.count(); ++f) {
      const int t = features_.table_of[f];
      sources[t].push_back({given.bags[f], grads[f].flat<float>().data(), lanes_.dims[t]});
    }
    std::vector<TableGradient> gradients;
    for (size_t t = 0; t < tables; ++t) {
      gradients.push_back({rows_of(given.by_table[t]), static_cast<int32_t>(lanes_.dims[t]), sources[t].data(),
                           static_cast<int64_t>(sources[t].size())});
    }
    if (!std::all_of(gradients.begin(), gradients.end(), OccurrenceSorter::supports)) {
      return absl::UnimplementedError("a step must have fewer than 2^32 - 1 ids of one table");
    }
    OccurrenceSorter sorter;
    sorter.sort(gradients.data(), static_cast<int64_t>(tables), InvalidIds::kZero, executor);
    for (size_t t = 0; t < tables; ++t) {
      const std::vector<Lane>& lanes = given.by_table[t];
      if (lanes.empty()) continue;
      const int32_t dim = static_cast<int32_t>(lanes_.dims[t]);
      if (lanes.size() == 1) {
        sum_into_rows(sorter.of(static_cast<int64_t>(t)), rows_of(lanes), dim, flat + lanes[0].offset, dim, executor);
        continue;
      }
      const Scratch<float> whole(rows_of(lanes) * dim);
      sum_into_rows(sorter.of(static_cast<int64_t>(t)), rows_of(lanes), dim, whole.get(), dim, executor);
      move_lanes<false>(lanes, dim, flat, whole.get());
    }
    return absl::OkStatus();
  }

  absl::Status weights(OpKernelContext* ctx, const Given& given, const tensorflow::OpInputList& grads,
                       const Executor& executor) const {
    tensorflow::OpInputList values;
    TF_RETURN_IF_ERROR(ctx->input_list("weights", &values));
    if (values.size() == 0) return absl::OkStatus();
    const Replies received = replies(ctx, given, executor);
    std::vector<WeightsJob> jobs;
    for (int f = 0; f < features_.count(); ++f) {
      const int w = features_.weights_of[f];
      if (w < 0) continue;
      const Table& table = received.tables[features_.table_of[f]];
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(1 + w, values[w].shape(), &out));
      jobs.push_back({table, given.bags[f], grads[f].flat<float>().data(), table.dim, out->flat<float>().data()});
    }
    weights_gradient(jobs.data(), static_cast<int64_t>(jobs.size()), InvalidIds::kZero, executor);
    return absl::OkStatus();
  }
};

REGISTER_OP("DembAssemble")
    .Input("replies: float")
    .Input("lane_rows: int64")
    .DEMB_FEATURE_INPUTS()
    .Output("vectors: num_features * float")
    .Attr("num_features: int >= 1")
    .Attr("lane_tables: list(int)")
    .Attr("lane_widths: list(int)")
    .Attr("lane_columns: list(int)")
    .Attr("lane_shards: list(int)")
    .Attr("dims: list(int)")
    .DEMB_FEATURE_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> dims;
      TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
      return infer_feature_outputs(c, 2, dims);
    });

REGISTER_OP("DembAssembleGradient")
    .Input("replies: float")
    .Input("lane_rows: int64")
    .DEMB_FEATURE_INPUTS()
    .Input("grads: num_features * float")
    .Output("replies_grad: float")
    .Output("weights_grads: num_weighted * float")
    .Attr("num_features: int >= 1")
    .Attr("lane_tables: list(int)")
    .Attr("lane_widths: list(int)")
    .Attr("lane_columns: list(int)")
    .Attr("lane_shards: list(int)")
    .Attr("dims: list(int)")
    .DEMB_FEATURE_ATTRS()
    .SetShapeFn([](InferenceContext* c) {
      std::vector<tensorflow::shape_inference::ShapeHandle> weights;
      TF_RETURN_IF_ERROR(c->input("weights", &weights));
      c->set_output(0, c->input(0));
      for (size_t w = 0; w < weights.size(); ++w) c->set_output(1 + static_cast<int>(w), weights[w]);
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DembAssemble").Device(tensorflow::DEVICE_CPU), AssembleOp);
REGISTER_KERNEL_BUILDER(Name("DembAssembleGradient").Device(tensorflow::DEVICE_CPU), AssembleGradientOp);

}  // namespace
}  // namespace demb
