// Memory of tables: huge pages where the system allows them.
#pragma once

#include "tensorflow/core/framework/tensor.h"

namespace demb {

// A zeroed tensor of a table's size.
absl::Status new_storage(tensorflow::DataType dtype, const tensorflow::TensorShape& shape, tensorflow::Tensor* out);

}  // namespace demb
