// A user of the installed library: both constructors, one collective each.
#include <tutti/dist_opt.hpp>
#include <tutti/mpi.hpp>

int main() {
  std::array<float, 2> data{1.0F, 2.0F};
  tutti::Communicator alone(0, 1, tutti::UniqueId::create());
  alone.all_reduce(std::span<float>(data));
  tutti::Communicator world;
  world.all_reduce(std::span<float>(data), tutti::Reduce::average);
  return data[0] == 1.0F && data[1] == 2.0F ? 0 : 1;
}
