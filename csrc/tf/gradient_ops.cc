// Sums of duplicates, and updates that never write the sums down: from features' gradients, or from rows and values.
#include <algorithm>
#include <vector>

#include "../core/occurrences.h"
#include "../core/sums.h"
#include "../core/update.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "features.h"
#include "lanes.h"
#include "pool_tensor.h"
#include "rule_attrs.h"
#include "tensorflow/core/framework/common_shape_fns.h"
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
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Tables that are worked on together have about so many ids: scratch follows this and not the batch.
constexpr int64_t kIdsAtATime = int64_t{1} << 22;

absl::Status too_large() {
  return absl::UnimplementedError(
      "a block of a table must have fewer than 2^32 - 1 rows, and a step fewer ids of one table. Cut the table's rows over "
      "more workers, or the batch");
}

absl::Status check_sizes(const std::vector<TableGradient>& tables) {
  return std::all_of(tables.begin(), tables.end(), OccurrenceSorter::supports) ? absl::OkStatus() : too_large();
}

// Calls visit(first, last) for groups of tables [first, last) until all were visited.
template <typename Visit>
void for_groups(const std::vector<TableGradient>& tables, Visit visit) {
  for (size_t first = 0; first < tables.size();) {
    size_t last = first;
    int64_t ids = 0;
    while (last < tables.size() && (last == first || ids + tables[last].num_ids() <= kIdsAtATime)) {
      ids += tables[last++].num_ids();
    }
    visit(first, last);
    first = last;
  }
}

// Whether each thread may take whole tables: then what it has sorted is still in its cache when it walks along it. One
// thread always may; several must not end up waiting for the one that has the largest table.
bool take_whole_tables(const std::vector<TableGradient>& tables, int threads) {
  int64_t most = 0, all = 0;
  for (const TableGradient& table : tables) {
    most = std::max(most, table.num_ids());
    all += table.num_ids();
  }
  return threads == 1 || most * threads * 4 <= all;
}

// The gradients of a step by table: what the sums and the updates have in common.
struct Gradients {
  std::vector<std::vector<GradientSource>> sources;
  std::vector<TableGradient> tables;

  void init(const std::vector<int64_t>& num_rows, const std::vector<int64_t>& dims) {
    sources.resize(dims.size());
    for (size_t t = 0; t < dims.size(); ++t) tables.push_back({num_rows[t], static_cast<int32_t>(dims[t]), nullptr, 0});
  }
  void close() {
    for (size_t t = 0; t < tables.size(); ++t) {
      tables[t].sources = sources[t].data();
      tables[t].num_sources = static_cast<int64_t>(sources[t].size());
    }
  }
};

// Where the gradients come from. Each has init(ctx, kernel, tables), policy() and read(ctx, dims, gradients).
class FromFeatures {
 public:
  absl::Status init(OpKernelConstruction* ctx, const OpKernel& kernel, size_t tables) {
    return features_.init(ctx, kernel, tables);
  }
  InvalidIds policy() const { return features_.invalid_ids; }
  absl::Status read(OpKernelContext* ctx, const std::vector<int64_t>& dims, Gradients* to) const {
    std::vector<Bags> bags;
    tensorflow::OpInputList grads;
    TF_RETURN_IF_ERROR(features_.bags(ctx, &bags));
    TF_RETURN_IF_ERROR(ctx->input_list("grads", &grads));
    for (int f = 0; f < features_.count(); ++f) {
      const int64_t dim = dims[features_.table_of[f]];
      if (grads[f].NumElements() != bags[f].num_bags * dim) {
        return absl::InvalidArgumentError(absl::StrCat("input ", f, ": the gradient must have the shape of the output"));
      }
      to->sources[features_.table_of[f]].push_back({bags[f], grads[f].flat<float>().data(), dim});
    }
    return absl::OkStatus();
  }

 private:
  FeatureAttrs features_;
};

class FromLanes {
 public:
  absl::Status init(OpKernelConstruction* ctx, const OpKernel& kernel, size_t) { return lanes_.init(ctx, kernel); }
  InvalidIds policy() const { return InvalidIds::kRaise; }
  absl::Status read(OpKernelContext* ctx, const std::vector<int64_t>& dims, Gradients* to) const {
    std::vector<LanePiece> pieces;
    int64_t elements;
    TF_RETURN_IF_ERROR(lanes_.pieces(ctx, dims, &pieces, &elements));
    const Tensor& grads = ctx->input(lanes_.inputs_end());
    if (grads.NumElements() != elements) {
      return absl::InvalidArgumentError(absl::StrCat("the gradient must have ", elements, " elements. Received: ",
                                                     grads.NumElements()));
    }
    for (const LanePiece& p : pieces) {
      to->sources[p.table].push_back({p.bags, grads.flat<float>().data() + p.offset, dims[p.table]});
    }
    return absl::OkStatus();
  }

 private:
  LaneAttrs lanes_;
};

// Rows and values of one table: IndexedSlices.
class FromSlices {
 public:
  absl::Status init(OpKernelConstruction*, const OpKernel&, size_t) { return absl::OkStatus(); }
  InvalidIds policy() const { return InvalidIds::kRaise; }
  absl::Status read(OpKernelContext* ctx, const std::vector<int64_t>& dims, Gradients* to) const {
    const Tensor& rows = ctx->input(0);
    const Tensor& values = ctx->input(1);
    if (values.NumElements() != rows.NumElements() * dims[0]) {
      return absl::InvalidArgumentError(absl::StrCat("`values` must be [", rows.NumElements(), ", ", dims[0],
                                                     "]. Received: shape ", values.shape().DebugString()));
    }
    Bags bags;
    bags.ids_are_64 = rows.dtype() == tensorflow::DT_INT64;
    bags.ids = rows.data();
    bags.num_ids = bags.num_bags = rows.NumElements();
    for (int64_t i = 0; i < bags.num_ids; ++i) {
      if (static_cast<uint64_t>(bags.id(i)) >= static_cast<uint64_t>(to->tables[0].num_rows)) {
        return absl::InvalidArgumentError(absl::StrCat("a gradient must name rows in [0, ", to->tables[0].num_rows,
                                                       "). Received: row ", bags.id(i)));
      }
    }
    to->sources[0].push_back({bags, values.flat<float>().data(), dims[0]});
    return absl::OkStatus();
  }
};

template <typename Source>
class SumOp final : public OpKernel {
 public:
  explicit SumOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_rows", &num_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES(ctx, num_rows_.size() == dims_.size(), absl::InvalidArgumentError("one entry a table"));
    OP_REQUIRES_OK(ctx, source_.init(ctx, *this, dims_.size()));
  }
  void Compute(OpKernelContext* ctx) override {
    Gradients gradients;
    gradients.init(num_rows_, dims_);
    OP_REQUIRES_OK(ctx, source_.read(ctx, dims_, &gradients));
    gradients.close();
    OP_REQUIRES_OK(ctx, check_sizes(gradients.tables));
    const TfExecutor executor(ctx);
    absl::Status status;
    for_groups(gradients.tables, [&](size_t first, size_t last) {
      OccurrenceSorter sorter;
      sorter.sort(gradients.tables.data() + first, static_cast<int64_t>(last - first), source_.policy(), executor);
      for (size_t t = first; t < last; ++t) {
        status.Update(write(ctx, static_cast<int>(t), sorter.of(static_cast<int64_t>(t - first)), executor));
      }
    });
    OP_REQUIRES_OK(ctx, status);
  }

 private:
  absl::Status write(OpKernelContext* ctx, int t, const Occurrences& o, const Executor& executor) const {
    const int tables = static_cast<int>(dims_.size());
    const int64_t count = count_rows(o, executor);
    Tensor *rows = nullptr, *sums = nullptr;
    TF_RETURN_IF_ERROR(allocate_pooled(ctx, t, TensorShape({count}), &rows));
    TF_RETURN_IF_ERROR(allocate_pooled(ctx, tables + t, TensorShape({count, dims_[t]}), &sums));
    sum_rows(o, static_cast<int32_t>(dims_[t]), rows->flat<int64_t>().data(), sums->flat<float>().data(), executor);
    return absl::OkStatus();
  }

  std::vector<int64_t> num_rows_, dims_;
  Source source_;
};

template <typename Source>
class UpdateOp final : public OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(ctx, rule_.init(ctx, *this, static_cast<int>(dims_.size())));
    OP_REQUIRES_OK(ctx, source_.init(ctx, *this, dims_.size()));
  }
  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<UpdateTarget> targets;
    OP_REQUIRES_OK(ctx, rule_.open(ctx, dims_, &variables, &targets));
    std::vector<int64_t> num_rows;
    for (const UpdateTarget& target : targets) num_rows.push_back(target.table.num_rows);
    Gradients gradients;
    gradients.init(num_rows, dims_);
    OP_REQUIRES_OK(ctx, source_.read(ctx, dims_, &gradients));
    gradients.close();
    OP_REQUIRES_OK(ctx, check_sizes(gradients.tables));
    std::vector<UpdateJob> jobs;
    for (size_t t = 0; t < targets.size(); ++t) jobs.push_back({nullptr, targets[t], rule_.step(ctx, static_cast<int>(t))});
    update(gradients.tables, &jobs, TfExecutor(ctx));
  }

 private:
  void update(const std::vector<TableGradient>& tables, std::vector<UpdateJob>* jobs, const Executor& executor) const {
    const auto sort_and_update = [&](size_t first, size_t last, const Executor& with) {
      OccurrenceSorter sorter;
      sorter.sort(tables.data() + first, static_cast<int64_t>(last - first), source_.policy(), with);
      for (size_t t = first; t < last; ++t) (*jobs)[t].occurrences = &sorter.of(static_cast<int64_t>(t - first));
      update_rows(jobs->data() + first, static_cast<int64_t>(last - first), with);
    };
    if (take_whole_tables(tables, executor.threads())) {
      executor.run(static_cast<int64_t>(tables.size()), [&](int64_t t) { sort_and_update(t, t + 1, SerialExecutor()); });
    } else {
      for_groups(tables, [&](size_t first, size_t last) { sort_and_update(first, last, executor); });
    }
  }

  std::vector<int64_t> dims_;
  RuleAttrs rule_;
  Source source_;
};

// Rows whose sums are there already: what has been through other hands.
class ApplyRowsOp final : public OpKernel {
 public:
  explicit ApplyRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dims", &dims_));
    OP_REQUIRES(ctx, dims_.size() == 1, absl::InvalidArgumentError("`dims` must be of one table"));
    OP_REQUIRES_OK(ctx, rule_.init(ctx, *this, 1));
    int end;
    OP_REQUIRES_OK(ctx, InputRange("rows", &rows_at_, &end));
  }
  void Compute(OpKernelContext* ctx) override {
    LockedVariables variables;
    std::vector<UpdateTarget> targets;
    OP_REQUIRES_OK(ctx, rule_.open(ctx, dims_, &variables, &targets));
    const Tensor& rows = ctx->input(rows_at_);
    const Tensor& sums = ctx->input(rows_at_ + 1);
    const Tensor& statistics = ctx->input(rows_at_ + 2);
    const int64_t count = rows.NumElements();
    OP_REQUIRES(ctx, sums.NumElements() == count * dims_[0] &&
                         (statistics.NumElements() == 0 || statistics.NumElements() == count),
                absl::InvalidArgumentError(absl::StrCat("`sums` must be [", count, ", ", dims_[0],
                                                        "] and `statistics` [", count, "] or empty. Received: shapes ",
                                                        sums.shape().DebugString(), " and ",
                                                        statistics.shape().DebugString())));
    const int64_t* r = rows.flat<int64_t>().data();
    const int64_t num_rows = targets[0].table.num_rows;
    const bool valid = std::all_of(r, r + count, [&](int64_t row) { return row >= 0 && row < num_rows; });
    OP_REQUIRES(ctx, valid, absl::InvalidArgumentError(absl::StrCat("rows must lie in [0, ", num_rows, ")")));
    update_rows(r, count, sums.flat<float>().data(),
                statistics.NumElements() == 0 ? nullptr : statistics.flat<float>().data(), targets[0],
                rule_.step(ctx, 0), TfExecutor(ctx));
  }

 private:
  std::vector<int64_t> dims_;
  RuleAttrs rule_;
  int rows_at_ = 0;
};

absl::Status sums_shape(InferenceContext* c) {
  std::vector<int64_t> dims;
  TF_RETURN_IF_ERROR(c->GetAttr("dims", &dims));
  const int tables = static_cast<int>(dims.size());
  for (int t = 0; t < tables; ++t) {
    c->set_output(t, c->Vector(InferenceContext::kUnknownDim));
    c->set_output(tables + t, c->Matrix(InferenceContext::kUnknownDim, dims[t]));
  }
  return absl::OkStatus();
}

REGISTER_OP("DembSumGradients")
    .DEMB_FEATURE_INPUTS()
    .Input("grads: num_features * float")
    .Output("rows: num_tables * int64")
    .Output("sums: num_tables * float")
    .Attr("num_tables: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("num_rows: list(int)")
    .Attr("dims: list(int)")
    .DEMB_FEATURE_ATTRS()
    .SetShapeFn(sums_shape);

REGISTER_OP("DembSumLanes")
    .DEMB_LANE_INPUTS()
    .Input("grads: float")
    .Output("rows: num_tables * int64")
    .Output("sums: num_tables * float")
    .Attr("num_tables: int >= 1")
    .Attr("num_rows: list(int)")
    .Attr("dims: list(int)")
    .DEMB_LANE_ATTRS()
    .SetShapeFn(sums_shape);

REGISTER_OP("DembSumSlices")
    .Input("indices: Tid")
    .Input("values: float")
    .Output("rows: int64")
    .Output("sums: float")
    .Attr("Tid: {int32, int64}")
    .Attr("num_rows: list(int)")
    .Attr("dims: list(int)")
    .SetShapeFn(sums_shape);

REGISTER_OP("DembUpdate")
    .Input("handles: num_tables * resource")
    .DEMB_RULE_INPUTS()
    .DEMB_FEATURE_INPUTS()
    .Input("grads: num_features * float")
    .Attr("num_tables: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("dims: list(int)")
    .DEMB_RULE_ATTRS()
    .DEMB_FEATURE_ATTRS()
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("DembUpdateLanes")
    .Input("handles: num_tables * resource")
    .DEMB_RULE_INPUTS()
    .DEMB_LANE_INPUTS()
    .Input("grads: float")
    .Attr("num_tables: int >= 1")
    .Attr("dims: list(int)")
    .DEMB_RULE_ATTRS()
    .DEMB_LANE_ATTRS()
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("DembApplyRows")
    .Input("handles: num_tables * resource")
    .DEMB_RULE_INPUTS()
    .Input("rows: int64")
    .Input("sums: float")
    .Input("statistics: float")
    .Attr("num_tables: int = 1")
    .Attr("dims: list(int)")
    .DEMB_RULE_ATTRS()
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("DembSumGradients").Device(tensorflow::DEVICE_CPU), SumOp<FromFeatures>);
REGISTER_KERNEL_BUILDER(Name("DembSumLanes").Device(tensorflow::DEVICE_CPU), SumOp<FromLanes>);
REGISTER_KERNEL_BUILDER(Name("DembSumSlices").Device(tensorflow::DEVICE_CPU), SumOp<FromSlices>);
REGISTER_KERNEL_BUILDER(Name("DembUpdate").Device(tensorflow::DEVICE_CPU), UpdateOp<FromFeatures>);
REGISTER_KERNEL_BUILDER(Name("DembUpdateLanes").Device(tensorflow::DEVICE_CPU), UpdateOp<FromLanes>);
REGISTER_KERNEL_BUILDER(Name("DembApplyRows").Device(tensorflow::DEVICE_CPU), ApplyRowsOp);

}  // namespace
}  // namespace demb
