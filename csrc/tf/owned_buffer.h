// Memory that tensors hold and that goes back where it came from with the last of them.
#pragma once

#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace demb {

class OwnedBuffer final : public tensorflow::TensorBuffer {
 public:
  using Release = void (*)(void* data, size_t capacity);

  // bytes: of the tensor. capacity: of the memory. name: of the allocator, for TensorFlow's reports.
  OwnedBuffer(void* data, size_t bytes, size_t capacity, Release release, const char* name)
      : TensorBuffer(data), bytes_(bytes), capacity_(capacity), release_(release), name_(name) {}
  ~OwnedBuffer() override { release_(data(), capacity_); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocated_bytes(static_cast<int64_t>(capacity_));
    description->set_allocator_name(name_);
  }

 private:
  size_t bytes_, capacity_;
  Release release_;
  const char* name_;
};

}  // namespace demb
