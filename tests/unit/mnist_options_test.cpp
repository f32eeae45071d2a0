// The example's command line.
#include "options.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

namespace mnist {
namespace {

Options parse(std::initializer_list<const char*> arguments) {
  return parse_options(std::vector<const char*>(arguments));
}

std::string refusal(std::initializer_list<const char*> arguments) {
  try {
    parse(arguments);
  } catch (const OptionError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(MnistOptions, DefaultsAreThoseOfTheDocument) {
  const Options options = parse({});
  EXPECT_TRUE(options.data_dir.empty());
  EXPECT_EQ(options.epochs, 10);
  EXPECT_EQ(options.batch_size, 64);
  EXPECT_EQ(options.lr, 0.005F);
  EXPECT_EQ(options.momentum, 0.9F);
  EXPECT_EQ(options.weight_decay, 1e-5F);
  EXPECT_EQ(options.seed, 0U);
  EXPECT_EQ(options.dist_option, "fp32");
  EXPECT_EQ(options.spars, 0.05);
  EXPECT_FALSE(options.momentum_correction);
  EXPECT_EQ(options.clip_norm, 0.0F);
  EXPECT_EQ(options.warm_up_epochs, 0);
  EXPECT_EQ(options.device, "auto");
  EXPECT_EQ(options.ranks, 0);
  EXPECT_FALSE(options.help);
}

TEST(MnistOptions, ReadsEachOption) {
  const Options options = parse({"--data-dir",
                                 "d",
                                 "--epochs=2",
                                 "--batch-size",
                                 "32",
                                 "--lr",
                                 "1e-2",
                                 "--momentum=0",
                                 "--weight-decay",
                                 "0.5",
                                 "--seed",
                                 "18446744073709551615",
                                 "--dist-option",
                                 "sparseTopK",
                                 "--spars",
                                 "0.001",
                                 "--momentum-correction",
                                 "--clip-norm=2.5",
                                 "--warm-up-epochs",
                                 "4",
                                 "--device=cpu",
                                 "--save",
                                 "s",
                                 "--resume=r",
                                 "--json",
                                 "j",
                                 "--ranks",
                                 "3",
                                 "--help"});
  EXPECT_EQ(options.data_dir, "d");
  EXPECT_EQ(options.epochs, 2);
  EXPECT_EQ(options.batch_size, 32);
  EXPECT_EQ(options.lr, 1e-2F);
  EXPECT_EQ(options.momentum, 0.0F);
  EXPECT_EQ(options.weight_decay, 0.5F);
  EXPECT_EQ(options.seed, UINT64_MAX);
  EXPECT_EQ(options.dist_option, "sparseTopK");
  EXPECT_EQ(options.spars, 0.001);
  EXPECT_TRUE(options.momentum_correction);
  EXPECT_EQ(options.clip_norm, 2.5F);
  EXPECT_EQ(options.warm_up_epochs, 4);
  EXPECT_EQ(options.device, "cpu");
  EXPECT_EQ(options.save, "s");
  EXPECT_EQ(options.resume, "r");
  EXPECT_EQ(options.json, "j");
  EXPECT_EQ(options.ranks, 3);
  EXPECT_TRUE(options.help);
}

TEST(MnistOptions, RefusesByNameAndValue) {
  EXPECT_EQ(refusal({"--bogus"}), "unknown option '--bogus', see --help");
  EXPECT_EQ(refusal({"epochs"}), "unknown option 'epochs', see --help");
  EXPECT_EQ(refusal({"--epochs"}), "--epochs: its value is missing");
  EXPECT_EQ(refusal({"--epochs", "0"}), "--epochs: '0' is not a number from 1 on");
  EXPECT_EQ(refusal({"--epochs", "2x"}), "--epochs: '2x' is not a number from 1 on");
  EXPECT_EQ(refusal({"--batch-size", "-1"}), "--batch-size: '-1' is not a number from 1 to 4096");
  EXPECT_EQ(refusal({"--lr", "nan"}), "--lr: 'nan' is not a number from 0 on");
  EXPECT_EQ(refusal({"--lr", "-0.1"}), "--lr: '-0.1' is not a number from 0 on");
  EXPECT_EQ(refusal({"--momentum", "inf"}), "--momentum: 'inf' is not a number from 0 on");
  EXPECT_EQ(refusal({"--seed", "-3"}), "--seed: '-3' is not a number from 0 on");
  EXPECT_EQ(refusal({"--dist-option", "fp8"}),
            "--dist-option: 'fp8' is not fp32 or fp16 or bf16 or partialUpdate or sparseTopK or "
            "sparseThreshold");
  EXPECT_EQ(refusal({"--spars", "-0.1"}), "--spars: '-0.1' is not a number from 0 on");
  EXPECT_EQ(refusal({"--dist-option=sparseTopK", "--spars=1.5"}),
            "--spars: sparseTopK sends a fraction above 0 and up to 1");
  EXPECT_EQ(refusal({"--momentum-correction"}), "--momentum-correction: not an option of fp32");
  EXPECT_EQ(refusal({"--clip-norm=1", "--dist-option=fp16"}),
            "--clip-norm 1: not an option of fp16");
  EXPECT_EQ(refusal({"--warm-up-epochs=1", "--dist-option=sparseThreshold"}),
            "--warm-up-epochs 1: not an option of sparseThreshold");
  EXPECT_EQ(refusal({"--spars", "0.1"}), "--spars 0.1: not an option of fp32");
  EXPECT_EQ(refusal({"--spars=0.05", "--dist-option", "bf16"}),
            "--spars 0.05: not an option of bf16");
  EXPECT_EQ(refusal({"--device=tpu"}), "--device: 'tpu' is not auto or cpu or cuda");
  EXPECT_EQ(refusal({"--ranks", "0"}), "--ranks: '0' is not a number from 1 to 1024");
  EXPECT_EQ(refusal({"--save="}), "--save: '' is not a path");
}

}  // namespace
}  // namespace mnist
