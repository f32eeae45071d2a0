// A libnccl that has nothing but a version.
// NOLINTNEXTLINE(readability-identifier-naming): the name is NCCL's
extern "C" int ncclGetVersion(int* version) {
  *version = 99999;
  return 0;
}
