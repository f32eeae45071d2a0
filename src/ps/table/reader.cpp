// A table of another process, or another thread, as its readers have it.
#include <string>
#include <utility>

#include "base/refuse.hpp"
#include "ps/table/arena.hpp"
#include "ps/table/row_reader.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

class TableReader::Impl {
 public:
  Impl(TableIdentity identity, const std::string& segment)
      : identity_(std::move(identity)), arena_(segment), reader_(identity_, arena_.base()) {
    const TableLayout& layout = reinterpret_cast<const TableHeader*>(arena_.base())->layout;
    if (layout.dim != identity_.spec.dim || layout.bytes != arena_.bytes()) {
      refuse("table '", identity_.spec.name, "' has rows of ", identity_.spec.dim,
             " elements, but in shared memory ", segment, " they are of ", layout.dim);
    }
  }

  const RowReader& reader() const { return reader_; }

 private:
  TableIdentity identity_;
  Arena arena_;
  RowReader reader_;
};

TableReader::TableReader(const TableIdentity& identity, const std::string& segment)
    : impl_(std::make_unique<Impl>(identity, segment)) {}
TableReader::TableReader(TableReader&&) noexcept = default;
TableReader& TableReader::operator=(TableReader&&) noexcept = default;
TableReader::~TableReader() = default;

std::int64_t TableReader::lookup(std::span<const std::int64_t> ids,
                                 std::span<const std::int64_t> positions, float* out) const {
  return impl_->reader().lookup(ids, positions, out);
}

void TableReader::prefetch(std::span<const std::int64_t> ids) const {
  impl_->reader().prefetch(ids);
}

}  // namespace tutti::ps
