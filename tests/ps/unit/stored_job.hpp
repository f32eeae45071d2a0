// The servers of a job without workers, for tests of checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ps/dense/layout.hpp"
#include "ps/dense/store.hpp"
#include "ps/files/checkpoint.hpp"
#include "ps/table/initial.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/** All servers of a job in one process, in private memory. */
class StoredJob {
 public:
  struct Server {
    std::vector<Table> tables;
    DenseStore dense;
    std::int64_t round = 0;

    ServerState state() { return {tables, &dense, round}; }
  };
  /** All that is stored of a row. */
  using Row = std::tuple<std::vector<float>, std::vector<float>, std::int64_t, float, float>;

  StoredJob(const std::vector<TableSpec>& specs, const std::vector<DenseParameter>& dense,
            int servers, std::uint64_t seed = 1) {
    const DenseLayout layout = lay_out(dense, servers, {.min_block_size = 4});
    for (int server = 0; server < servers; ++server) {
      std::vector<Table> tables;
      for (const TableSpec& spec : specs) {
        tables.emplace_back(TableIdentity{spec, table_seed(seed, spec.name), server, servers}, "");
      }
      std::vector<OwnBlock> blocks;
      for (const Block& block : layout[static_cast<std::size_t>(server)]) {
        const DenseParameter& own = dense[static_cast<std::size_t>(block.parameter)];
        blocks.push_back({block, own.rule, own.name, element_count(own)});
      }
      servers_.push_back(std::make_unique<Server>(
          Server{std::move(tables), DenseStore(std::move(blocks), ""), 0}));
    }
  }

  int count() const { return static_cast<int>(servers_.size()); }
  Server& server(int number) { return *servers_[static_cast<std::size_t>(number)]; }

  /** A push for each of the ids to the servers that have them, and a step of all servers. */
  void push(int table, const std::vector<std::int64_t>& ids) {
    for (auto& server : servers_) {
      Table& part = server->tables[static_cast<std::size_t>(table)];
      const TableIdentity& identity = part.identity();
      std::vector<std::int64_t> own;
      std::vector<float> values;
      std::vector<float> shows;
      for (const std::int64_t id : ids) {
        const TableSpec& spec = identity.spec;
        if (place_of(id, spec.split, count()).server != identity.server) continue;
        own.push_back(id);
        shows.push_back(static_cast<float>(id % 5));
        for (std::int64_t column = 0; column < spec.dim; ++column) {
          values.push_back(0.125F * static_cast<float>((id + column) % 17));
        }
      }
      part.update({.ids = own, .values = values.data(), .shows = shows.data()});
      part.step();
    }
  }

  /** A push to every dense block, whose gradients do not depend on how they are cut. */
  void push_dense(int step) {
    for (auto& server : servers_) {
      std::int64_t number = 0;
      for (const OwnBlock& own : server->dense.blocks()) {
        std::vector<float> gradient;
        for (std::int64_t i = 0; i < own.block.count; ++i) {
          gradient.push_back(static_cast<float>((own.block.offset + i + step) % 7) - 3.0F);
        }
        server->dense.update({number++, gradient}, 0.5F);
      }
      ++server->round;
    }
  }

  void save(const std::string& folder, const std::string& attempt) {
    for (int number = 0; number < count(); ++number) {
      PartWriter writer(server(number).state(), folder, attempt, number, count());
      while (writer.next()) {
      }
    }
    publish_checkpoint(folder, attempt, count());
  }

  void load(const std::string& folder) {
    for (int number = 0; number < count(); ++number) {
      server(number).round = load_checkpoint(folder, server(number).state(), number, count());
    }
  }

  std::map<std::int64_t, Row> rows(int table) {
    std::map<std::int64_t, Row> rows;
    for (auto& server : servers_) {
      const Table& part = server->tables[static_cast<std::size_t>(table)];
      const TableSpec& spec = part.identity().spec;
      const std::int64_t floats = state_floats(spec.rule, spec.dim);
      for (int shard = 0; shard < Table::kShards; ++shard) {
        part.for_each_row(shard, [&](const StoredRow& row) {
          rows[row.id] = {{row.weights, row.weights + spec.dim},
                          {row.state, row.state + floats},
                          row.last_step,
                          row.shows,
                          row.clicks};
        });
      }
    }
    return rows;
  }

  /** Of each parameter, by its name: the values of all its elements. */
  std::map<std::string, std::vector<float>> dense_values() {
    std::map<std::string, std::vector<float>> all;
    for (auto& server : servers_) {
      std::int64_t number = 0;
      for (const OwnBlock& own : server->dense.blocks()) {
        std::vector<float>& values = all[own.parameter];
        values.resize(static_cast<std::size_t>(own.elements));
        std::ranges::copy(server->dense.values(number++), values.begin() + own.block.offset);
      }
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace tutti::ps
