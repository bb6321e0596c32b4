#include "io/picture.h"

#include <fmt/format.h>

#include <chrono>

#include "io/files.h"
#include "io/run.h"

namespace dthrottle {
namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr std::size_t kPictureBytesMax = std::size_t{64} << 20;

}    // namespace

Result<void> CheckPicture(const std::filesystem::path& file) {
  if (file.extension() == ".svg" || file.extension() == ".png") return {};
  return Fail(fmt::format("{}: .svg or .png is drawn", file.string()));
}

Result<void> DrawPicture(const Picture& picture, const std::filesystem::path& file, const std::string& gnuplot) {
  if (const auto fits = CheckPicture(file); !fits) return fits;
  const Result<TemporaryFolder> folder = TemporaryFolder::Make();
  if (!folder) return tl::unexpected(folder.error());
  const std::string script =
      fmt::format("set terminal {} size {},{} background rgb 'white'\nset colorsequence podo\nset output 'picture'\n{}",
                  file.extension() == ".svg" ? "svg" : "pngcairo", picture.width, picture.height, picture.script);
  if (const auto written = ReplaceFile(folder->path() / "script", script); !written) {
    return Fail(written.error().message);
  }
  const Result<Finished> done = Run({gnuplot, "-d", "script"}, folder->path(), kPatience, "gnuplot-nox");
  if (!done) return tl::unexpected(done.error());
  const auto drawn = ReadFile(folder->path() / "picture", kPictureBytesMax);
  if (done->status != 0 || !drawn || drawn->empty()) {
    return Fail(fmt::format("{} ended with status {}: {}", gnuplot, done->status, done->output));
  }
  return WriteOutput(file, *drawn);
}

}    // namespace dthrottle
