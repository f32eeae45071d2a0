// The part of DLPack that tutti reads and writes: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace tutti::python::dlpack {

enum DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,
  kRocmHost = 11,
  kCudaManaged = 13
};
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };
inline constexpr std::uint64_t kReadOnly = 1;
/** What stands for a GPU's default stream, here and in __cuda_array_interface__. */
inline constexpr std::intptr_t kDefaultStream = 1;

struct Device {
  std::int32_t type;
  std::int32_t ordinal;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  friend bool operator==(const DataType&, const DataType&) = default;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null for C order
  std::uint64_t byte_offset;
};

/** What a capsule holds that is named so. */
struct Managed {
  static constexpr const char* kCapsule = "dltensor";
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

/** The same since version 1.0. */
struct VersionedManaged {
  static constexpr const char* kCapsule = "dltensor_versioned";
  std::uint32_t major_version;
  std::uint32_t minor_version;
  void* context;
  void (*deleter)(VersionedManaged*);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace tutti::python::dlpack
