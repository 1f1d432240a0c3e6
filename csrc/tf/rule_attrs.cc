#include "rule_attrs.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace demb {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

absl::Status RuleAttrs::init(OpKernelConstruction* ctx, const tensorflow::OpKernel& kernel, int num_tables) {
  static const char* const names[] = {"sgd",  "momentum", "nesterov", "adagrad", "rowwise_adagrad",
                                      "adam", "amsgrad",  "rmsprop",  "ftrl"};
  std::string name;
  std::vector<float> hyper;
  int64_t seed;
  num_tables_ = num_tables;
  TF_RETURN_IF_ERROR(ctx->GetAttr("rule", &name));
  TF_RETURN_IF_ERROR(ctx->GetAttr("hyper", &hyper));
  TF_RETURN_IF_ERROR(ctx->GetAttr("weight_decay", &rule_.weight_decay));
  TF_RETURN_IF_ERROR(ctx->GetAttr("clip", &rule_.clip));
  TF_RETURN_IF_ERROR(ctx->GetAttr("stochastic_rounding", &rule_.stochastic_rounding));
  TF_RETURN_IF_ERROR(ctx->GetAttr("seed", &seed));
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_offsets", &slot_offsets_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("slot_widths", &slot_widths_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("first_rows", &first_rows_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("row_steps", &row_steps_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("first_columns", &first_columns_));
  if (std::find(std::begin(names), std::end(names), name) == std::end(names)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no rule of the name ", name));
  }
  rule_.kind = static_cast<RuleKind>(std::find(std::begin(names), std::end(names), name) - std::begin(names));
  rule_.seed = static_cast<uint64_t>(seed);
  const size_t tables = static_cast<size_t>(num_tables);
  if (hyper.size() > 8 || slot_offsets_.size() != slot_widths_.size() || slot_offsets_.size() % tables != 0 ||
      slot_offsets_.size() / tables > kMaxSlots || first_rows_.size() != tables || row_steps_.size() != tables ||
      first_columns_.size() != tables) {
    return absl::InvalidArgumentError("the attributes of the rule must have one entry a table (and slot)");
  }
  std::copy(hyper.begin(), hyper.end(), rule_.hyper);
  int end;
  TF_RETURN_IF_ERROR(kernel.InputRange("rates", &rate_at_, &end));
  return kernel.InputRange("step", &step_at_, &end);
}

absl::Status RuleAttrs::open(OpKernelContext* ctx, const std::vector<int64_t>& dims, LockedVariables* variables,
                             std::vector<UpdateTarget>* targets) const {
  if (ctx->input(rate_at_).NumElements() != 2 || ctx->input(step_at_).NumElements() != 1) {
    return absl::InvalidArgumentError("`rates` must be two numbers and `step` one");
  }
  const int slots = static_cast<int>(slot_offsets_.size());
  // Handles of tables and slots stand behind each other, so that all are locked in one order.
  TF_RETURN_IF_ERROR(variables->open(ctx, 0, num_tables_ + slots, Access::kWrite));
  targets->resize(static_cast<size_t>(num_tables_));
  const int each = slots / num_tables_;
  for (int t = 0; t < num_tables_; ++t) {
    UpdateTarget& to = (*targets)[t];
    TF_RETURN_IF_ERROR(variables->table(t, dims[t], &to.table));
    to.num_slots = each;
    for (int s = 0; s < each; ++s) {
      const int k = t * each + s;
      TF_RETURN_IF_ERROR(variables->slot(num_tables_ + k, slot_offsets_[k], slot_widths_[k], &to.slots[s]));
    }
    for (int before = 0; before < t; ++before) {
      if ((*targets)[before].table.data == to.table.data && to.table.num_rows > 0) {
        return absl::InvalidArgumentError(absl::StrCat("tables ", before, " and ", t, " must not be one variable"));
      }
    }
    if (!slots_fit(rule_, to)) {
      return absl::InvalidArgumentError(absl::StrCat("table ", t, ": its slots do not fit the rule"));
    }
  }
  return absl::OkStatus();
}

RuleStep RuleAttrs::step(OpKernelContext* ctx, int table) const {
  RuleStep step = rule_;
  step.learning_rate = ctx->input(rate_at_).flat<float>()(0);
  step.rate = ctx->input(rate_at_).flat<float>()(1);
  step.step = ctx->input(step_at_).scalar<int64_t>()();
  step.first_row = first_rows_[table];
  step.row_step = row_steps_[table];
  step.first_column = first_columns_[table];
  return step;
}

}  // namespace demb
