// The row rule of an update op, from its attributes and the step's numbers.
#pragma once

#include <string>
#include <vector>

#include "../core/update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "variables.h"

namespace demb {

// rates [2]: the learning rate, and what the rule makes of it (Adam's bias correction).
// slots: one handle a table and slot, table by table; a slot beside the rows has the table's own handle.
#define DEMB_RULE_INPUTS()                  \
  Input("slots: num_slots * resource")      \
      .Input("rates: float")                \
      .Input("step: int64")

// slot_offsets (bytes), slot_widths: by table and slot. first_rows, row_steps, first_columns: by table, where the block
// lies in its table.
#define DEMB_RULE_ATTRS()                                                                                      \
  Attr("num_slots: int >= 0")                                                                                  \
      .Attr("rule: {'sgd', 'momentum', 'nesterov', 'adagrad', 'rowwise_adagrad', 'adam', 'amsgrad', 'rmsprop', 'ftrl'}") \
      .Attr("hyper: list(float)")                                                                              \
      .Attr("weight_decay: float")                                                                             \
      .Attr("clip: float")                                                                                     \
      .Attr("stochastic_rounding: bool")                                                                       \
      .Attr("seed: int")                                                                                       \
      .Attr("slot_offsets: list(int)")                                                                         \
      .Attr("slot_widths: list(int)")                                                                          \
      .Attr("first_rows: list(int)")                                                                           \
      .Attr("row_steps: list(int)")                                                                            \
      .Attr("first_columns: list(int)")

class RuleAttrs {
 public:
  absl::Status init(tensorflow::OpKernelConstruction* ctx, const tensorflow::OpKernel& kernel, int num_tables);

  // Opens tables and slots for writing, and sees them as core does.
  absl::Status open(tensorflow::OpKernelContext* ctx, const std::vector<int64_t>& dims, LockedVariables* tables,
                    std::vector<UpdateTarget>* targets) const;
  // The rule of this step for table t.
  RuleStep step(tensorflow::OpKernelContext* ctx, int table) const;

 private:
  RuleStep rule_;
  std::vector<int64_t> slot_offsets_, slot_widths_, first_rows_, row_steps_, first_columns_;
  int num_tables_ = 0, rate_at_ = 0, step_at_ = 0;
};

}  // namespace demb
