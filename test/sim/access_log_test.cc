#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <catch2/catch.hpp>

#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lab/access_log.h"
#include "lab/log_file.h"

namespace dthrottle::lab {
namespace {

constexpr std::string_view kCommon =
    R"(127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326)";

// The common line with something else in place of `what`. Lives as long as the program, for fields are views of it.
std::string_view With(std::string_view what, std::string_view by) {
  static std::deque<std::string> lines;
  std::string line(kCommon);
  return lines.emplace_back(line.replace(line.find(what), what.size(), by));
}

std::string Reason(std::string_view line) {
  const auto parsed = ParseLogLine(line);
  return parsed ? "" : parsed.error().message;
}

std::string Tag(std::string_view text, std::string_view line) {
  std::string tag;
  TagTemplate::Parse(text).value().Expand(ParseLogLine(line).value(), tag);
  return tag;
}

TEST_CASE("the common format has seven fields") {
  const LogLine line = ParseLogLine(kCommon).value();
  CHECK(line.host == "127.0.0.1");
  CHECK(line.ident == "-");
  CHECK(line.user == "frank");
  CHECK(line.time_s == 971211336);
  CHECK(line.request == "GET /apache_pb.gif HTTP/1.0");
  CHECK(line.status == "200");
  CHECK(line.size == "2326");
  CHECK(line.referer == "-");
  CHECK(line.agent == "-");
}

TEST_CASE("the combined format adds two, and what follows them is passed over") {
  const std::string combined = std::string(kCommon) + R"~( "http://a.example/\"q\"" "Mozilla/4.08 [en] (Win98)")~";
  for (const std::string& text : {combined, combined + " 0.003 \"x\"", combined + "\r"}) {
    const LogLine line = ParseLogLine(text).value();
    CHECK(line.referer == R"(http://a.example/\"q\")");
    CHECK(line.agent == "Mozilla/4.08 [en] (Win98)");
  }
  CHECK(ParseLogLine(std::string(kCommon) + " \"cut off").value().referer == "-");
}

TEST_CASE("addresses may be of IPv6 or names") {
  for (const std::string_view host : {"2001:db8::7", "::1", "[2001:db8::7]", "host.example.org"}) {
    CHECK(ParseLogLine(With("127.0.0.1", host)).value().host == host);
  }
}

TEST_CASE("a user may have blanks and brackets") {
  CHECK(ParseLogLine(With("frank", "frank o'hara")).value().user == "frank o'hara");
  CHECK(ParseLogLine(With("frank", "[x] y")).value().user == "[x] y");
}

TEST_CASE("a client cannot write itself another date") {
  const LogLine user = ParseLogLine(With("frank", R"(x [10/Oct/2099:13:55:36 -0700] \"GET / HTTP/1.1\" 200)")).value();
  CHECK(user.time_s == 971211336);
  const LogLine path = ParseLogLine(With("/apache_pb.gif", R"(/] \"[10/Oct/2099:13:55:36 -0700] \"x)")).value();
  CHECK(path.time_s == 971211336);
  CHECK(path.status == "200");
}

TEST_CASE("a quote behind a backslash does not end a request") {
  CHECK(ParseLogLine(With("/apache_pb.gif", R"(/a\"b\\)")).value().request == R"(GET /a\"b\\ HTTP/1.0)");
  CHECK(ParseLogLine(With("GET /apache_pb.gif HTTP/1.0", R"(\x16\x03\x01)")).value().request == R"(\x16\x03\x01)");
  CHECK(ParseLogLine(With("GET /apache_pb.gif HTTP/1.0", "")).value().request.empty());
}

TEST_CASE("a status or a size may be unknown") {
  CHECK(ParseLogLine(With("200 2326", "- -")).value().size == "-");
  CHECK(ParseLogLine(With("200 2326", "499 0")).value().status == "499");
}

TEST_CASE("lines without a field are unreadable, and say which") {
  CHECK(Reason("") == "no date in brackets with a request in quotes behind it");
  CHECK(Reason("[") == "no date in brackets with a request in quotes behind it");
  CHECK(Reason("] \"") == "no date in brackets");
  CHECK(Reason(With("127.0.0.1 - frank ", "")) == "not an address, an identity and a user before the date");
  CHECK(Reason(With("127.0.0.1 - frank", "127.0.0.1 -")) == "not an address, an identity and a user before the date");
  CHECK(Reason(With("127.0.0.1 - frank", "127.0.0.1 - ")) == "not an address, an identity and a user before the date");
  CHECK(Reason(With("127.0.0.1", "")) == "not an address, an identity and a user before the date");
  CHECK(Reason(With("HTTP/1.0\" 200 2326", "HTTP/1.0")) == "the request has no end");
  CHECK(Reason(With("HTTP/1.0\" 200 2326", "HTTP/1.0\\\" 200")) == "the request has no end");
  CHECK(Reason(With(" 200 2326", "")) == "no status behind the request");
  CHECK(Reason(With("200 2326", "2000 2326")) == "no status behind the request");
  CHECK(Reason(With(" 2326", "")) == "no size behind the status");
  CHECK(Reason(With("2326", "2k")) == "no size behind the status");
  CHECK(Reason(With("10/Oct/2000:13:55:36 -0700", "10/Oct/2000")) == "no date in brackets");
  CHECK(Reason(With("Oct", "Okt")) == "there is no such date");
}

TEST_CASE("dates are read over ends of months, leap years and changes of the clock") {
  const auto at = [](std::string_view text) { return ParseLogTime(text).value(); };
  CHECK(at("01/Jan/1970:00:00:00 +0000") == 0);
  CHECK(at("31/Dec/1969:23:59:59 +0000") == -1);
  CHECK(at("29/Feb/2024:00:00:00 +0000") == 1709164800);
  CHECK(at("01/Mar/2024:00:00:00 +0000") - at("28/Feb/2024:23:59:59 +0000") == 86401);
  CHECK(at("01/Mar/2023:00:00:00 +0000") - at("28/Feb/2023:23:59:59 +0000") == 1);
  CHECK(at("01/Jan/2001:00:00:00 +0000") - at("31/Dec/2000:23:59:59 +0000") == 1);
  // An hour that comes twice in autumn, and one that there is not in spring.
  CHECK(at("29/Oct/2023:02:00:00 +0100") - at("29/Oct/2023:02:59:59 +0200") == 1);
  CHECK(at("26/Mar/2023:03:00:00 +0200") - at("26/Mar/2023:01:59:59 +0100") == 1);
  CHECK(at("10/Oct/2000:13:55:36 -0730") - at("10/Oct/2000:13:55:36 +0530") == 13 * 3600);
  CHECK(at("31/Dec/2016:23:59:60 +0000") == at("01/Jan/2017:00:00:00 +0000"));    // a leap second
}

TEST_CASE("dates that there are not are refused") {
  for (const char* bad : {"29/Feb/2023:00:00:00 +0000", "29/Feb/1900:00:00:00 +0000", "31/Apr/2023:00:00:00 +0000",
                          "00/Jan/2023:00:00:00 +0000", "01/ebM/2023:00:00:00 +0000", "01/Jan/2023:24:00:00 +0000",
                          "01/Jan/2023:00:60:00 +0000", "01/Jan/2023:00:00:61 +0000", "01/Jan/2023:00:00:00 *0000",
                          "01/Jan/2023:00:00:00 +2400", "01/Jan/2023:00:00:00 +0060", "01/Jan/-023:00:00:00 +0000",
                          "1/Jan/2023:00:00:00 +0000", "01/Jan/2023 00:00:00 +0000"}) {
    CAPTURE(bad);
    CHECK_FALSE(ParseLogTime(bad).has_value());
  }
}

TEST_CASE("times are written as they were read") {
  for (const std::int64_t t : {0l, -1l, -86400l, 951782400l, 1709164800l, 4102444799l, 971211336l}) {
    const std::string text = FormatTime(t);
    static constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const auto month = static_cast<std::size_t>(std::stoi(text.substr(5, 2)) - 1);
    const std::string again = text.substr(8, 2) + "/" + std::string(kMonths.substr(3 * month, 3)) + "/" +
                              text.substr(0, 4) + ":" + text.substr(11, 8) + " +0000";
    CHECK(ParseLogTime(again).value() == t);
  }
  CHECK(FormatTime(971211336) == "2000-10-10T20:55:36Z");
}

TEST_CASE("requests have a method, a path and a query, or none of them") {
  const auto parts = [](std::string_view request) {
    const RequestParts p = SplitRequest(request);
    return std::string(p.method) + "|" + std::string(p.path) + "|" + std::string(p.query);
  };
  CHECK(parts("GET /a/b?c=d HTTP/1.1") == "GET|/a/b|?c=d");
  CHECK(parts("GET /a b?c HTTP/2.0") == "GET|/a b|?c");
  CHECK(parts("GET /old") == "GET|/old|");
  CHECK(parts("-") == "-|-|");
  CHECK(parts("") == "-|-|");
  CHECK(parts(" /x HTTP/1.1") == "-|-|");
}

TEST_CASE("a tag is made of text and fields") {
  CHECK(Tag("ip:%h", kCommon) == "ip:127.0.0.1");
  CHECK(Tag("%m %U%q %% %u/%l %s %>s %b", With("gif", "gif?x=1")) == "GET /apache_pb.gif?x=1 % frank/- 200 200 2326");
  CHECK(Tag("%{referer}i|%{User-Agent}i", std::string(kCommon) + R"( "r" "a")") == "r|a");
  CHECK(Tag("all", kCommon) == "all");
  CHECK(Tag("", kCommon).empty());
  for (const char* bad : {"%", "%x", "100%", "%{Cookie}i", "a\nb", "%H"}) {
    CAPTURE(bad);
    CHECK_FALSE(TagTemplate::Parse(bad).has_value());
  }
}

// A folder of this test's own.
struct Folder {
  Folder() {
    std::string made = (std::filesystem::temp_directory_path() / "dthrottle-log-XXXXXX").string();
    REQUIRE(::mkdtemp(made.data()) != nullptr);
    path = made;
  }
  ~Folder() { std::filesystem::remove_all(path); }

  std::string Write(std::string_view bytes) const {
    std::ofstream(path / "log", std::ios::binary) << bytes;
    return path / "log";
  }
  std::string WriteGzip(std::string_view bytes) const {
    const std::string name = path / "log.gz";
    gzFile file = gzopen(name.c_str(), "wb");
    REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
    gzclose(file);
    return name;
  }

  std::filesystem::path path;
};

std::vector<std::string> Lines(const std::string& path, std::string* error = nullptr) {
  LogFile file = LogFile::Open(path).value();
  std::vector<std::string> lines;
  while (const auto line = file.Next()) {
    lines.push_back(line->over_long ? "(over-long)" : std::string(line->text));
  }
  if (error != nullptr) *error = file.error();
  return lines;
}

TEST_CASE("lines come out of plain files and compressed ones, the last with or without its end") {
  const Folder folder;
  const std::vector<std::string> all = {"a", "", "b\r", "c"};
  CHECK(Lines(folder.Write("a\n\nb\r\nc\n")) == all);
  CHECK(Lines(folder.Write("a\n\nb\r\nc")) == all);
  CHECK(Lines(folder.WriteGzip("a\n\nb\r\nc")) == all);
  CHECK(Lines(folder.Write("")).empty());
  std::string many;
  for (int i = 0; i < 200'000; ++i) many += std::to_string(i) + '\n';
  const auto lines = Lines(folder.WriteGzip(many));
  REQUIRE(lines.size() == 200'000);
  CHECK(lines.back() == "199999");
  CHECK(lines[123'456] == "123456");
}

TEST_CASE("a line that is too long is told, once, and the next one is whole") {
  const Folder folder;
  const std::string fits(kLogLineBytesMax, 'x'), more(10 * kLogLineBytesMax, 'y');
  CHECK(Lines(folder.Write(fits + "\n" + more + "\nb\n")) == std::vector<std::string>{fits, "(over-long)", "b"});
  CHECK(Lines(folder.Write(fits + "x\nb\n")) == std::vector<std::string>{"(over-long)", "b"});
  CHECK(Lines(folder.Write("a\n" + more)) == std::vector<std::string>{"a", "(over-long)"});
}

TEST_CASE("a compressed file that ends early gives what there is, and says so") {
  const Folder folder;
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += std::to_string(i * 7919 % 1'000'003) + '\n';
  const std::string path = folder.WriteGzip(many);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  std::string error;
  CHECK(Lines(path, &error).size() > 10'000);
  CHECK(error == "ends in the middle of compressed data");
  CHECK_FALSE(LogFile::Open(folder.path / "none").has_value());
  CHECK_FALSE(LogFile::Open(folder.path).has_value());
}

TEST_CASE("members of a compressed file are read one after another, and what is none of them is told") {
  const Folder folder;
  const auto bytes = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string one = bytes(folder.WriteGzip("a\nb")), two = bytes(folder.WriteGzip("c\nd\n"));
  std::string error;
  CHECK(Lines(folder.Write(one + two), &error) == std::vector<std::string>{"a", "bc", "d"});
  CHECK(error == "");
  CHECK(Lines(folder.Write(one + two + std::string(512, '\0')), &error) == std::vector<std::string>{"a", "bc", "d"});
  CHECK(error == "");
  CHECK(Lines(folder.Write(one + '\0' + two), &error) == std::vector<std::string>{"a", "b"});
  CHECK(error == fmt::format("{} bytes behind a member of gzip are none and were not read", 1 + two.size()));
  const std::string much(1 << 20, 'x');
  CHECK(Lines(folder.Write(two + much), &error) == std::vector<std::string>{"c", "d"});
  CHECK(error.starts_with("1048576 bytes behind"));
  CHECK(Lines(folder.Write("\x1f"), &error) == std::vector<std::string>{"\x1f"});
  CHECK(error == "");
}

TEST_CASE("dates one after the other are read as each by itself") {
  LogDates dates;
  CHECK_FALSE(dates.Read("").has_value());
  for (const std::string_view text : {"10/Oct/2000:13:55:36 -0700", "10/Oct/2000:13:55:36 -0700", "nonsense",
                                      "10/Oct/2000:13:55:37 -0700", "10/Oct/2000:13:55:36 -0700"}) {
    const auto read = dates.Read(text), alone = ParseLogTime(text);
    CHECK(read.has_value() == alone.has_value());
    if (read && alone) CHECK(*read == *alone);
  }
}

}    // namespace
}    // namespace dthrottle::lab
