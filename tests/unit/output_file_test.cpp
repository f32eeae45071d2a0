// Output files: whole or not there, and never in the place of what is no regular file.
#include "tutti/output_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/folder.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class OutputFiles : public ::testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    return names;
  }

  static std::string refusal(const fs::path& path) {
    try {
      OutputFile{path};
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  test::Folder made_;
  fs::path folder_ = made_.path();
};

TEST_F(OutputFiles, TheOldFileStaysUntilTheNewOneIsWhole) {
  const fs::path path = folder_ / "result";
  std::ofstream(path) << "old";
  {
    OutputFile file(path);
    file.write("begun");
    EXPECT_EQ(content_of(path), "old");
  }
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"result"});

  OutputFile file(path);
  file.write("new");
  file.commit();
  EXPECT_EQ(content_of(path), "new");
  file.write(", and more");
  EXPECT_EQ(content_of(path), "new, and more");
  EXPECT_EQ(names(), std::vector<std::string>{"result"});
}

TEST_F(OutputFiles, OthersCannotForeseeTheTemporaryName) {
  const fs::path path = folder_ / "result";
  const OutputFile first(path);
  const std::vector<std::string> before = names();
  const OutputFile second(path);
  ASSERT_EQ(before.size(), 1U);
  EXPECT_TRUE(before[0].starts_with(".") && before[0].ends_with(".tmp")) << before[0];
  EXPECT_EQ(names().size(), 2U);
}

TEST_F(OutputFiles, LinksDevicesAndFoldersAreLeftAlone) {
  const fs::path target = folder_ / "target";
  std::ofstream(target) << "precious";
  const fs::path link = folder_ / "link";
  fs::create_symlink(target, link);
  const fs::path dangling = folder_ / "dangling";
  fs::create_symlink(folder_ / "none", dangling);
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::size_t files = names().size();

  const std::string refused = ": cannot be replaced: is ";
  EXPECT_EQ(refusal(link), link.string() + refused + "a symbolic link");
  EXPECT_EQ(refusal(dangling), dangling.string() + refused + "a symbolic link");
  EXPECT_EQ(refusal(pipe), pipe.string() + refused + "not a regular file");
  EXPECT_EQ(refusal(folder_), folder_.string() + refused + "a folder");
  EXPECT_EQ(refusal("/dev/full"), "/dev/full" + refused + "not a regular file");
  EXPECT_EQ(refusal(folder_ / ""), "'" + folder_.string() + "/' is not the name of a file");
  EXPECT_EQ(refusal(folder_ / "none" / "result"),
            folder_.string() + "/none/result: cannot be written: No such file or directory");
  EXPECT_EQ(content_of(target), "precious");
  EXPECT_EQ(names().size(), files);
}

TEST_F(OutputFiles, WhatTakesThePlaceMeanwhileIsNotFollowed) {
  const fs::path target = folder_ / "target";
  std::ofstream(target) << "precious";
  const fs::path path = folder_ / "result";
  OutputFile file(path);
  file.write("new");
  fs::create_symlink(target, path);
  file.commit();
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path)));
  EXPECT_EQ(content_of(target), "precious");

  const fs::path occupied = folder_ / "occupied";
  {
    OutputFile late(occupied);
    fs::create_directory(occupied);
    EXPECT_THROW(late.commit(), SystemError);
  }
  EXPECT_EQ(names().size(), 3U);  // nothing temporary stays
}

TEST_F(OutputFiles, WhatBelongsToOthersIsRefusedAtOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
  const fs::path path = folder_ / "result";
  std::ofstream(path) << "of root";
  ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  ASSERT_EQ(seteuid(65534), 0);
  const std::string others = refusal(path);
  const std::string own = refusal(folder_ / "own");
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(others, path.string() + ": cannot be written: Operation not permitted");
  EXPECT_EQ(own, "nothing was refused");
  EXPECT_EQ(refusal(path), "nothing was refused");
}

TEST_F(OutputFiles, TheUmaskDecidesWhoMayRead) {
  const mode_t before = umask(027);
  const fs::path path = folder_ / "result";
  OutputFile(path).commit();
  umask(before);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0640});
}

TEST_F(OutputFiles, PermissionsOfTheOldFileAreKept) {
  const fs::path path = folder_ / "result";
  std::ofstream(path) << "old";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  OutputFile(path).commit();
  EXPECT_EQ(fs::status(path).permissions(), fs::perms{0600});
}

TEST_F(OutputFiles, NamesMayBeAsLongAsTheSystemAllows) {
  OutputFile(folder_ / std::string(255, 'x')).commit();
  EXPECT_EQ(names().size(), 1U);
}

TEST_F(OutputFiles, FoldersThatMayNotBeReadAreWrittenTo) {
  ASSERT_EQ(chmod(folder_.c_str(), 0300), 0);
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(chown(folder_.c_str(), 65534, 65534), 0);
    ASSERT_EQ(seteuid(65534), 0);
  }
  EXPECT_NO_THROW(OutputFile(folder_ / "result").commit());
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  EXPECT_EQ(names(), std::vector<std::string>{"result"});
}

}  // namespace
}  // namespace tutti
