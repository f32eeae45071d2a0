// DistOpt's refusals: what they say, and what they leave as it was.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "opt/compressors/plain.hpp"

namespace tutti::test {
namespace {

class DistOptErrors : public RankTest {};

/** Emits gradients of 1 for the listed parameters. */
Backward emit_ones(Values& values, std::vector<std::size_t> order) {
  return [&values, order = std::move(order)](const Emit& emit) {
    for (const std::size_t i : order) {
      const std::vector<float> ones(values.arrays[i].size(), 1.0F);
      emit(values.view(i), std::span<const float>(ones));
    }
  };
}

TEST_F(DistOptErrors, WrongEmissionsAreRefusedAndTheStepMayBeTriedAgain) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2, 3, 4}, 1.0F);
    Values stranger({2}, 1.0F);
    opt.register_parameters(values.parameters());
    opt.backward_and_update(emit_ones(values, {2, 1, 0}));
    const Values before = values;
    const auto refused = [&](const Backward& backward) {
      std::string message = message_of([&] { opt.backward_and_update(backward); });
      EXPECT_EQ(values, before) << message;
      return message;
    };
    EXPECT_TRUE(contains(refused(emit_ones(values, {2, 1})), "did not emit parameter 'p0'"));
    EXPECT_EQ(refused(emit_ones(values, {2, 0, 1})),
              "the backward pass emitted parameter 'p0' where the first one emitted parameter "
              "'p1'");
    EXPECT_EQ(refused(emit_ones(values, {2, 2})),
              "parameter 'p2' was emitted twice in one backward pass");
    EXPECT_TRUE(contains(refused(emit_ones(stranger, {0})), "is not registered"));
    EXPECT_EQ(refused([&](const Emit& emit) { emit(values.view(2).part(0, 3), values.view(2)); }),
              "parameter 'p2' was registered with 4 elements of f32 and now has 3 of f32");
    EXPECT_EQ(refused([&](const Emit& emit) { emit(values.view(2), values.view(1)); }),
              "the gradient of parameter 'p2' has 3 elements, the parameter 4");
    EXPECT_EQ(refused([&](const Emit& emit) {
                emit(values.view(2), ConstView(values.arrays[2].data(), 4, DType::bf16));
              }),
              "the gradient of parameter 'p2' has dtype bf16; an optimiser updates f32");
    EXPECT_EQ(refused(nullptr), "backward_and_update: backward is an empty function");
    EXPECT_EQ(opt.state().numbers.at("steps"), 1.0);
    opt.backward_and_update(emit_ones(values, {2, 1, 0}));
    EXPECT_EQ(values, Values({2, 3, 4}, -1.0F));
  });
}

TEST_F(DistOptErrors, AnErrorThatBackwardSwallowsIsStillAnError) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2, 3}, 1.0F);
    opt.register_parameters(values.parameters());
    const auto careless = [&](const Emit& emit) {
      for (const std::size_t i : {1U, 1U, 0U}) {
        try {
          emit_ones(values, {i})(emit);
        } catch (const InvalidArgument&) {
        }
      }
    };
    EXPECT_EQ(message_of([&] { opt.backward_and_update(careless); }),
              "parameter 'p1' was emitted twice in one backward pass");
    EXPECT_EQ(values, Values({2, 3}, 1.0F));
  });
}

TEST_F(DistOptErrors, WhatBackwardThrowsComesOutAndTheStepMayBeTriedAgain) {
  on_ranks([](Communicator& communicator) {
    for (const bool registered : {true, false}) {
      DistOpt opt = over(communicator);
      Values values({2, 3}, 1.0F);
      if (registered) opt.register_parameters(values.parameters());
      const auto failing = [&](const Emit& emit) {
        emit_ones(values, {1, 0})(emit);
        throw std::runtime_error("no more images");
      };
      EXPECT_EQ(message_of<std::runtime_error>([&] { opt.backward_and_update(failing); }),
                "no more images");
      EXPECT_EQ(values, Values({2, 3}, 1.0F));
      opt.backward_and_update(emit_ones(values, {1, 0}));
      EXPECT_EQ(values, Values({2, 3}, 0.0F));
    }
  });
}

TEST_F(DistOptErrors, AnErrorWithBucketsUnderWayIsLearntByAll) {
  // MPI is not finalised after a failure, which mpiexec takes for a failure of the test.
  if (!world().one_host()) GTEST_SKIP() << "mpiexec would report a failure between hosts";
  on_ranks([](Communicator& communicator) {
    const int last = communicator.world_size() - 1;
    if (last == 0) return;
    DistOpt opt = over(communicator, buckets_of(1));
    Values values({20, 30, 40}, 1.0F);
    const auto backward = [&](const Emit& emit) {
      emit_ones(values, {2})(emit);
      if (communicator.global_rank() == last) throw std::range_error("out of images");
      emit_ones(values, {1, 0})(emit);
    };
    if (communicator.global_rank() == last) {
      opt.register_parameters(values.parameters());
      EXPECT_THROW(opt.backward_and_update(backward), std::range_error);
    } else {
      try {
        opt.register_parameters(values.parameters());
        opt.backward_and_update(backward);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const PeerLost& error) {
        EXPECT_EQ(error.ranks(), std::vector<int>{last}) << error.what();
        EXPECT_TRUE(contains(error.what(), "out of images")) << error.what();
      }
    }
    bool ran = false;
    EXPECT_THROW(opt.backward_and_update([&](const Emit&) { ran = true; }), CommunicationError);
    EXPECT_FALSE(ran);
    EXPECT_THROW(communicator.barrier(), CommunicationError);
  });
}

TEST_F(DistOptErrors, UnregisteredParametersThatDifferAreRefusedEverywhere) {
  on_ranks([](Communicator& communicator) {
    const int last = communicator.world_size() - 1;
    if (last == 0) return;
    DistOpt opt = over(communicator);
    Values values({2, 3}, 1.0F);
    if (communicator.global_rank() == last) values.arrays[1][2] = 1.0000001F;
    const Values before = values;
    EXPECT_EQ(message_of([&] {
                opt.backward_and_update(emit_ones(values, {1, 0}));
              }),
              "the parameters of rank " + std::to_string(last) +
                  " differ in value from those of rank 0: call register_parameters() on all ranks "
                  "before the first backward pass");
    EXPECT_EQ(values, before);
    opt.register_parameters(values.parameters());
    opt.backward_and_update(emit_ones(values, {1, 0}));
    EXPECT_EQ(values, Values({2, 3}, 0.0F));
  });
}

TEST_F(DistOptErrors, ListsThatDifferAreRefusedEverywhere) {
  on_ranks([](Communicator& communicator) {
    const int last = communicator.world_size() - 1;
    if (last == 0) return;
    const bool odd = communicator.global_rank() == last;
    const std::string who = "the parameters of rank " + std::to_string(last) + " are not those of";
    DistOpt opt = over(communicator);
    Values shorter(odd ? std::vector<std::size_t>{2} : std::vector<std::size_t>{2, 3}, 1.0F);
    const std::string message = message_of([&] { opt.register_parameters(shorter.parameters()); });
    EXPECT_TRUE(contains(message, who)) << message;
    EXPECT_TRUE(contains(message, "2 parameters of 5 elements")) << message;
    EXPECT_TRUE(contains(message, "1 parameters of 2 elements")) << message;

    Values swapped(odd ? std::vector<std::size_t>{3, 2} : std::vector<std::size_t>{2, 3}, 1.0F);
    EXPECT_TRUE(contains(message_of([&] { opt.register_parameters(swapped.parameters()); }),
                         "their sizes differ"));

    DistOpt other_buckets = over(communicator, buckets_of(odd ? 7 : 8));
    Values values({2, 3}, 1.0F);
    EXPECT_TRUE(
        contains(message_of([&] { other_buckets.register_parameters(values.parameters()); }),
                 "in buckets of 7"));

    opt.register_parameters(values.parameters());
    opt.backward_and_update(emit_ones(values, {1, 0}));
    EXPECT_EQ(values, Values({2, 3}, 0.0F));
  });
}

TEST_F(DistOptErrors, LayoutsThatDifferAreAMismatchEverywhere) {
  on_ranks([](Communicator& communicator) {
    const int last = communicator.world_size() - 1;
    if (last == 0) return;
    const bool odd = communicator.global_rank() == last;
    DistOpt opt = over(communicator);
    Values values({6, 6, 6}, static_cast<float>(communicator.global_rank()));
    const Values before = values;
    std::vector<Parameter> list = values.parameters();
    list[1].layout = odd ? "3x2" : "2x3";
    list[2].layout = odd ? "" : "6";
    const auto registering = [&] { opt.register_parameters(list); };
    EXPECT_EQ(message_of<MismatchError>(registering),
              "parameter 'p1' is 2x3 on rank 0, but 3x2 on rank " + std::to_string(last));
    list[1].layout = "2x3";
    EXPECT_EQ(message_of<MismatchError>(registering),
              "parameter 'p2' is 6 on rank 0, but of no layout on rank " + std::to_string(last));
    list[2].layout = communicator.global_rank() == 0 ? "6" : std::string(300, 'x');
    if (last > 1) {
      const std::string message = message_of<MismatchError>(registering);
      EXPECT_TRUE(contains(message, "but " + std::string(200, 'x') + " on rank 1; the layouts of"));
    }
    EXPECT_EQ(values, before);
    list[2].layout = "6";
    opt.register_parameters(list);
    EXPECT_EQ(values, Values({6, 6, 6}, 0.0F));
  });
}

TEST_F(DistOptErrors, RegistrationRefusesWhatItCannotTrain) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2, 3}, 1.0F);
    std::vector<double> doubles(3);
    const std::vector<Parameter> wrong{{std::span<double>(doubles), "bias"}};
    EXPECT_EQ(message_of([&] { opt.register_parameters(wrong); }),
              "parameter 'bias' has dtype f64; an optimiser updates f32");
    const std::vector<Parameter> twice{{values.view(0), "a"}, {values.view(0), "b"}};
    EXPECT_TRUE(contains(message_of([&] { opt.register_parameters(twice); }), "is there twice"));
    EXPECT_TRUE(contains(message_of([&] { opt.load_state({}); }), "register_parameters()"));
    opt.register_parameters(values.parameters());
    EXPECT_EQ(message_of([&] { opt.register_parameters(values.parameters()); }),
              "register_parameters: 2 parameters are already registered");
  });
}

TEST_F(DistOptErrors, AFirstPassRegistersThoughItsStepFails) {
  on_ranks([](Communicator& communicator) {
    DistOptions options;
    bool fails = true;
    options.compressor = [&](const CompressorSite& site) {
      if (std::exchange(fails, false)) throw std::runtime_error("no compressor yet");
      return std::make_unique<PlainCompressor>(site);
    };
    DistOpt opt = over(communicator, options);
    Values values({2, 3}, 1.0F);
    EXPECT_FALSE(opt.is_registered());
    const auto stop = [](const Emit&) { throw std::runtime_error("no more images"); };
    EXPECT_THROW(opt.backward_and_custom_update(stop), std::runtime_error);
    EXPECT_FALSE(opt.is_registered());
    const auto step = [&] { opt.backward_and_custom_update(emit_ones(values, {1, 0})); };
    EXPECT_EQ(message_of<std::runtime_error>(step), "no compressor yet");
    EXPECT_TRUE(opt.is_registered());
    EXPECT_EQ(values, Values({2, 3}, 1.0F));
    step();
    EXPECT_EQ(values, Values({2, 3}, 0.0F));
  });
}

TEST_F(DistOptErrors, AnOptimiserBelongsToOneDistOptAtATime) {
  on_ranks([](Communicator& communicator) {
    auto sgd = std::make_shared<SGD>(SgdOptions{.lr = 1.0F, .momentum = 0.5F});
    Values values({2, 3}, 4.0F);
    Values others({7}, 1.0F);
    Values unlisted({2}, 1.0F);
    const std::string refusal = "belongs to another DistOpt";
    {
      DistOpt opt = over(communicator, sgd);
      opt.register_parameters(values.parameters());
      opt.backward_and_update(emit_ones(values, {1, 0}));
      DistOpt second = over(communicator, sgd);
      const auto list = [&] { second.register_parameters(others.parameters()); };
      EXPECT_TRUE(contains(message_of(list), refusal));
      const auto step = [&] { second.backward_and_update(emit_ones(unlisted, {0})); };
      EXPECT_TRUE(contains(message_of(step), refusal));
      EXPECT_EQ(opt.state().arrays.at("momentum"), std::vector<float>(5, 1.0F));
      opt.backward_and_update(emit_ones(values, {1, 0}));
      EXPECT_EQ(values, Values({2, 3}, 4.0F - 1.0F - 1.5F));
    }
    DistOpt next = over(communicator, sgd);
    next.register_parameters(others.parameters());
    next.backward_and_update(emit_ones(others, {0}));
    EXPECT_EQ(others, Values({7}, 0.0F));
    EXPECT_EQ(next.state().numbers.at("steps"), 1.0);
  });
}

TEST_F(DistOptErrors, AnOptimiserThatIsReleasedIsFree) {
  on_ranks([](Communicator& communicator) {
    auto descent = std::make_shared<Descent>();
    Values values({2}, 1.0F);
    DistOpt opt = over(communicator, descent);
    const std::vector<View> gradients = opt.register_parameters(values.parameters());
    opt.release_optimizer();
    const auto step = [&] { opt.backward_and_update(emit_ones(values, {0})); };
    EXPECT_EQ(message_of<CommunicationError>(step), "the optimiser of this DistOpt was released");
    EXPECT_EQ(values, Values({2}, 1.0F));
    DistOpt other = over(communicator, descent);
    other.register_parameters(values.parameters());
    other.backward_and_update(emit_ones(values, {0}));
    EXPECT_EQ(values, Values({2}, 0.0F));
    *static_cast<float*>(gradients.front().data) = 1.0F;  // memory of the first one
  });
}

TEST_F(DistOptErrors, AListThatIsRefusedLeavesTheOptimiserFree) {
  on_ranks([](Communicator& communicator) {
    const int last = communicator.world_size() - 1;
    if (last == 0) return;
    auto descent = std::make_shared<Descent>();
    DistOpt opt = over(communicator, descent);
    Values odd({communicator.global_rank() == last ? 2U : 3U}, 1.0F);
    EXPECT_TRUE(contains(message_of([&] { opt.register_parameters(odd.parameters()); }),
                         "are not those of rank 0"));
    Values values({2}, 1.0F);
    DistOpt other = over(communicator, descent);
    other.register_parameters(values.parameters());
    other.backward_and_update(emit_ones(values, {0}));
    EXPECT_EQ(values, Values({2}, 0.0F));
  });
}

TEST_F(DistOptErrors, NothingMayWriteParametersInsideBackward) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    Values values({2}, 1.0F);
    opt.register_parameters(values.parameters());
    opt.backward_and_update([&](const Emit& emit) {
      EXPECT_TRUE(contains(message_of([&] { opt.update(values.view(0), values.view(0)); }),
                           "update was called inside a backward pass"));
      EXPECT_TRUE(contains(message_of([&] { opt.backward_and_update(emit_ones(values, {0})); }),
                           "backward_and_update was called inside a backward pass"));
      EXPECT_TRUE(contains(message_of([&] { opt.load_state({}); }),
                           "load_state was called inside a backward pass"));
      emit_ones(values, {0})(emit);
    });
    EXPECT_EQ(values, Values({2}, 0.0F));
  });
}

TEST_F(DistOptErrors, ConstructorsNameTheArgument) {
  on_ranks([](Communicator& communicator) {
    EXPECT_EQ(message_of([&] { over(communicator, nullptr, {}); }), "DistOpt: optimizer is null");
    EXPECT_EQ(message_of([&] { over(communicator, buckets_of(0)); }),
              "DistOpt: bucket_elements is 0; it must be at least 1");
    EXPECT_EQ(
        message_of([] { DistOpt(std::make_shared<Descent>(), std::shared_ptr<Communicator>()); }),
        "DistOpt: communicator is null");
    // Refused before the ranks would meet, so that nobody waits for this one.
    EXPECT_EQ(message_of([] { DistOpt(nullptr, UniqueId::create(), 0, 2); }),
              "DistOpt: optimizer is null");
  });
}

}  // namespace
}  // namespace tutti::test
