// Graphs from text, names and settings: what is read, and what is said when it cannot be.
#include <catch2/catch.hpp>

#include <cmath>
#include <string>

#include "capacity/graph.h"
#include "config/load.h"
#include "plan/graph_reader.h"
#include "test/paper/graphs.h"

namespace dthrottle::plan {
namespace {

using Names = std::vector<std::string>;

NamedGraph Read(std::string_view text) {
  Result<NamedGraph> graph = ParseGraph(text, "file");
  if (!graph) FAIL(graph.error().message);
  return *std::move(graph);
}

std::string Complaint(std::string_view text) {
  const Result<NamedGraph> graph = ParseGraph(text, "file");
  return graph ? "none" : graph.error().message;
}

TEST_CASE("a list of links has weights, comments and blank lines") {
  const NamedGraph read = Read("# two\n\nweb-1 web-2\n  web-2\tweb-3   2.5  # heavy\r\n");
  CHECK(read.names == Names{"web-1", "web-2", "web-3"});
  REQUIRE(read.graph.links().size() == 2);
  CHECK(read.graph.links()[0].weight == 1);
  CHECK(read.graph.links()[1].weight == 2.5);
  CHECK(Linked(read.graph, 2, 1));
  CHECK_FALSE(Linked(read.graph, 0, 2));
}

TEST_CASE("nodes that are all numbers are in their order") {
  CHECK(Read("10 2\n2 9\n").names == Names{"2", "9", "10"});
  CHECK(Read("10 2\n2 x\n").names == Names{"10", "2", "x"});
}

TEST_CASE("a wrong line is named, with what is allowed") {
  CHECK(Complaint("a b\na\n") == "file:2: \"a\": a line is \"a b [weight]\"");
  CHECK(Complaint("a b 1 2\n") == "file:1: \"a b 1 2\": a line is \"a b [weight]\"");
  CHECK(Complaint("a b\n\nb a\n") == "file:3: b and a are linked already, in line 1");
  CHECK(Complaint("a a\n") == "file:1: a is linked to itself");
  for (const char* weight : {"0", "-1", "nan", "inf", "1e99", "x", "1x"}) {
    CHECK(Complaint("a b " + std::string(weight)).starts_with("file:1: weight \"" + std::string(weight) + "\": "));
  }
  CHECK(Complaint("") == "file: a graph needs two nodes and a link");
  CHECK(Complaint(std::string(300, 'x') + " b").find("at most 255") != std::string::npos);
  CHECK(Complaint("a \x01\n a \x01").find("a and ? are linked already") != std::string::npos);
  std::string many;
  for (int i = 0; i < 10'001; ++i) many += "hub n" + std::to_string(i) + "\n";
  CHECK(Complaint(many) == "file:10000: more than 10000 nodes");
}

TEST_CASE("DOT says the same") {
  const NamedGraph read = Read(
      "// fleet\nstrict graph \"my fleet\" {\n  node [shape=box]; rankdir = LR;\n  a -- b -- \"c d\" [weight=2, "
      "label=\"x \\\" y\"];\n  /* not\n yet */ e; e -- a # last\n}\n");
  CHECK(read.names == Names{"a", "b", "c d", "e"});
  REQUIRE(read.graph.links().size() == 3);
  CHECK(read.graph.links()[1].weight == 2);
  CHECK(read.graph.links()[2].weight == 1);
  const NamedGraph edges =
      Read("graph { a -- b; edge [weight=5]; b -- c; c -- d [weight=2]; node [weight=7]; d -- e }");
  REQUIRE(edges.graph.links().size() == 4);
  for (const auto& [link, weight] : {std::pair(0, 1.0), {1, 5.0}, {2, 2.0}, {3, 5.0}}) {
    CHECK(edges.graph.links()[static_cast<std::size_t>(link)].weight == weight);
  }
  // A node may be called "graph" in a list of links.
  CHECK(Read("graph b\n").names == Names{"graph", "b"});
}

TEST_CASE("a backslash is read as it is written, and a byte order mark is none of the graph") {
  CHECK(Read(R"(graph { "a\\b" -- "c\\"; "d\e" -- "c\\" })").names == Names{R"(a\b)", R"(c\)", R"(d\e)"});
  CHECK(Read("\xef\xbb\xbf" "graph { a -- b }").names == Names{"a", "b"});
  CHECK(Read("\xef\xbb\xbf" "a b\n").names == Names{"a", "b"});
}

TEST_CASE("what DOT has and a plan cannot use is refused with its line") {
  CHECK(Complaint("digraph { a -> b }") == "file:1: links have no direction here: use graph and --");
  CHECK(Complaint("graph {\n a -> b }") == "file:2: links have no direction here: use --");
  CHECK(Complaint("graph {\n subgraph x { a -- b } }") == "file:2: subgraphs are not understood");
  CHECK(Complaint("graph {\n a -- { b c } }") == "file:2: subgraphs are not understood");
  CHECK(Complaint("graph {\n a:n -- b }") == "file:2: ports are not understood");
  CHECK(Complaint("graph {\n a -- b [weight=0] }").starts_with("file:2: weight \"0\""));
  CHECK(Complaint("graph {\n a -- b ") == "file:2: the end where a node belongs");
  CHECK(Complaint("graph {\n a -- \"b ") == "file:2: the quotation mark has no partner");
  CHECK(Complaint("graph {\n a -- b } x") == "file:2: \"x\" where the end belongs");
  CHECK(Complaint("graph { a -- b /* }") == "file:1: the comment has no end");
  CHECK(Complaint("graph { a -- b [weight] }") == "file:1: \"]\" where \"=\" belongs");
  CHECK(Complaint("graph { a -- b & c }") == "file:1: \"&\" is not DOT");
}

TEST_CASE("graphs by name have the links that their names say") {
  const auto shape = [](std::string_view what) {
    const Result<NamedGraph> graph = Generate(what);
    if (!graph) FAIL(graph.error().message);
    CHECK(graph->graph.Connected());
    return std::pair(graph->graph.size(), graph->graph.links().size());
  };
  CHECK(shape("ring:10") == std::pair(10U, std::size_t{10}));
  CHECK(shape("ring:2") == std::pair(2U, std::size_t{1}));
  CHECK(shape("path:10") == std::pair(10U, std::size_t{9}));
  CHECK(shape("star:5") == std::pair(5U, std::size_t{4}));
  CHECK(shape("complete:6") == std::pair(6U, std::size_t{15}));
  CHECK(shape("grid:3:4") == std::pair(12U, std::size_t{17}));
  CHECK(shape("regular:100:4") == std::pair(100U, std::size_t{200}));
  CHECK(shape("regular:50:2:7") == std::pair(50U, std::size_t{50}));
  CHECK(shape("random:20:40:3") == std::pair(20U, std::size_t{40}));
  CHECK(shape("dst:1") == std::pair(10U, std::size_t{9}));
  CHECK(shape("dst:2") == std::pair(10U, std::size_t{20}));
  for (std::uint32_t i = 0; i < 100; ++i) CHECK(Generate("regular:100:4:9")->graph.Degree(i) == 4);
  const auto links = [](std::string_view what) {
    std::string text;
    const NamedGraph named = *Generate(what);
    for (const WeightedLink& link : named.graph.links())
      text += std::to_string(link.a) + "-" + std::to_string(link.b) + " ";
    return text;
  };
  CHECK(links("random:20:40:3") == links("random:20:40:3"));
  CHECK(links("random:20:40:3") != links("random:20:40:4"));
}

TEST_CASE("a graph that cannot be made is an error that says what can") {
  for (const char* what : {"ring:1", "ring:10001", "ring:x", "ring:", "ring:3:3", "wheel:4", "dst:3", "grid:3",
                           "ring:-3", "grid:4294967295:4294967297", "regular:5:3", "regular:10:10", "regular:10:1",
                           "random:10:8", "random:10:46", "ring:99999999999999999999"}) {
    CAPTURE(what);
    const Result<NamedGraph> graph = Generate(what);
    REQUIRE_FALSE(graph);
    CHECK(graph.error().message.starts_with(what));
  }
  CHECK(IsGenerator("ring:x"));
  CHECK_FALSE(IsGenerator("ring"));
  CHECK_FALSE(IsGenerator("./ring:10"));
}

HostSettings Host(const std::string& name, int port, const std::string& connect) {
  const std::string text = "[peers]\nname = \"" + name + "\"\nbind = \"tcp://127.0.0.1:" + std::to_string(port) +
                           "\"\nconnect = [" + connect + "]\n[[rule]]\nburst = 10\nrate = 1.0\n";
  const LoadedSettings loaded = ParseSettings(text, name + ".toml");
  for (const Problem& problem : loaded.problems) UNSCOPED_INFO(Format(problem));
  REQUIRE(loaded.ok());
  return {name + ".toml", loaded.settings};
}

TEST_CASE("settings of a fleet are a graph of who connects to whom") {
  const HostSettings hosts[] = {Host("a", 7000, R"("tcp://127.0.0.1:7002")"),
                                Host("b", 7002, R"("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7002")"),
                                Host("c", 7004, R"("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7008")")};
  const Result<NamedGraph> fleet = FleetGraph(hosts);
  REQUIRE(fleet);
  CHECK(fleet->names == Names{"a", "b", "c", "127.0.0.1:7008"});
  CHECK(fleet->graph.links().size() == 3);
  CHECK(Linked(fleet->graph, 0, 1));
  CHECK(Linked(fleet->graph, 0, 2));
  CHECK(Linked(fleet->graph, 2, 3));
  REQUIRE(fleet->notes.size() == 1);
  CHECK(fleet->notes[0].starts_with("c.toml: tcp://127.0.0.1:7008 is none of the hosts given"));
  const HostSettings twice[] = {Host("a", 7000, ""), Host("a", 7002, "")};
  CHECK_FALSE(FleetGraph(twice));
}

TEST_CASE("a graph refuses what is none") {
  CHECK_FALSE(Graph::Make(0, {}));
  CHECK_FALSE(Graph::Make(2, {{0, 2, 1}}));
  CHECK_FALSE(Graph::Make(2, {{1, 1, 1}}));
  CHECK_FALSE(Graph::Make(2, {{0, 1, 1}, {1, 0, 1}}));
  CHECK_FALSE(Graph::Make(2, {{0, 1, 0}}));
  CHECK_FALSE(Graph::Make(2, {{0, 1, std::nan("")}}));
  CHECK_FALSE(Graph::Make(3, {{0, 1, 1}})->Connected());
}

}    // namespace
}    // namespace dthrottle::plan
