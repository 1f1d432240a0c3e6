// Error texts of a grouped lookup: the feature, the table, the id, where it stands.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace demb {

// An invalid id as the error tells of it. row: of the batch; total: invalid ids of all features.
inline std::string invalid_text(const std::string& feature, const std::string& table, int64_t id, int64_t num_rows,
                                int64_t row, int64_t total) {
  return absl::StrCat("feature ", feature, " (table ", table, "): id ", id, " is outside [0, ", num_rows, ") at row ", row,
                      " of the batch on rank 0 (invalid ids there in all: ", total, "). ");
}

inline std::string batch_sizes_text(const std::vector<std::string>& features, const std::vector<int64_t>& sizes) {
  std::string text = "all features of a call must have one batch size. Received on rank 0: ";
  for (size_t f = 0; f < features.size(); ++f) absl::StrAppend(&text, f == 0 ? "" : ", ", features[f], ": ", sizes[f]);
  return text + ". ";
}

}  // namespace demb
