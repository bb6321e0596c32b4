#include "plan/graph_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "base/host_name.h"
#include "base/number.h"
#include "base/words.h"
#include "config/values.h"

namespace dthrottle::plan {
namespace {

constexpr std::string_view kBlank = " \t\r";

bool IsBlank(char c) {
  return kBlank.find(c) != std::string_view::npos;
}

// Nodes by name, and links with the line they came from.
class Builder {
 public:
  explicit Builder(std::string_view file) : file_(file) {}

  tl::unexpected<Error> Wrong(std::size_t line, std::string_view what) const {
    return Fail(fmt::format("{}:{}: {}", file_, line, what));
  }

  Result<std::uint32_t> Node(std::string_view name, std::size_t line) {
    if (name.size() > kNodeNameBytesMax) {
      return Wrong(
          line, fmt::format("the name of a node has {} bytes; at most {} are allowed", name.size(), kNodeNameBytesMax));
    }
    const auto [at, is_new] = nodes_.emplace(name, static_cast<std::uint32_t>(names_.size()));
    if (is_new) {
      if (names_.size() == kNodesMax) return Wrong(line, fmt::format("more than {} nodes", kNodesMax));
      names_.emplace_back(name);
    }
    return at->second;
  }

  Result<void> Add(std::string_view from, std::string_view to, double weight, std::size_t line) {
    const Result<std::uint32_t> a = Node(from, line);
    if (!a) return tl::unexpected(a.error());
    const Result<std::uint32_t> b = Node(to, line);
    if (!b) return tl::unexpected(b.error());
    if (*a == *b) return Wrong(line, fmt::format("{} is linked to itself", Shown(from)));
    const auto [seen, is_new] = lines_.emplace(std::minmax(*a, *b), line);
    if (!is_new) {
      return Wrong(line, fmt::format("{} and {} are linked already, in line {}", Shown(from), Shown(to), seen->second));
    }
    if (links_.size() == kLinksMax) return Wrong(line, fmt::format("more than {} links", kLinksMax));
    links_.push_back({*a, *b, weight});
    return {};
  }

  Result<double> Weight(std::string_view text, std::size_t line) const {
    double weight = 0;
    if (!ParseNumber(text, weight) || !(weight >= kWeightMin && weight <= kWeightMax)) {
      return Wrong(line, fmt::format("weight \"{}\": a number from {} to {} is allowed; leave a link of weight 0 out",
                                     Shown(text), kWeightMin, kWeightMax));
    }
    return weight;
  }

  Result<NamedGraph> Finish() && {
    if (names_.size() < 2) return Fail(fmt::format("{}: a graph needs two nodes and a link", file_));
    SortIfNumbers();
    Result<Graph> graph = Graph::Make(static_cast<std::uint32_t>(names_.size()), std::move(links_));
    if (!graph) return Fail(fmt::format("{}: {}", file_, graph.error().message));
    return NamedGraph{*std::move(graph), std::move(names_), {}};
  }

 private:
  void SortIfNumbers() {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
    for (std::uint32_t i = 0; i < names_.size(); ++i) {
      std::uint64_t number = 0;
      if (!ParseNumber(names_[i], number)) return;
      order.emplace_back(number, i);
    }
    std::ranges::sort(order);
    std::vector<std::uint32_t> place(order.size());
    std::vector<std::string> sorted;
    for (const auto& [number, i] : order) {
      place[i] = static_cast<std::uint32_t>(sorted.size());
      sorted.push_back(std::move(names_[i]));
    }
    names_ = std::move(sorted);
    for (WeightedLink& link : links_) link = {place[link.a], place[link.b], link.weight};
  }

  std::string file_;
  std::vector<std::string> names_;
  std::map<std::string, std::uint32_t, std::less<>> nodes_;
  std::vector<WeightedLink> links_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> lines_;    // of links, smaller node first
};

// ---- DOT ----

// A word of DOT: an identifier (quoted or not), "--", "->", or one of "{}[];,=".
struct Token {
  enum class Kind { kEnd, kId, kQuoted, kMark };
  Kind kind = Kind::kEnd;
  std::string text;
  std::size_t line = 1;

  bool Is(std::string_view mark) const { return kind == Kind::kMark && text == mark; }
  bool IsId() const { return kind == Kind::kId || kind == Kind::kQuoted; }
  // Keywords have no case, and are none in quotes.
  bool IsWord(std::string_view word) const {
    return kind == Kind::kId && std::ranges::equal(text, word, {}, [](char c) { return c | 0x20; });
  }
};

class Lexer {
 public:
  Lexer(std::string_view text, const Builder& builder) : text_(text), builder_(builder) {}

  Result<Token> Next() {
    if (const auto skipped = SkipBlanks(); !skipped) return tl::unexpected(skipped.error());
    Token token{Token::Kind::kEnd, "", line_};
    if (text_.empty()) return token;
    if (text_.front() == '"') return Quoted();
    for (const std::string_view mark : {"--", "->", "{", "}", "[", "]", ";", ",", "=", ":"}) {
      if (!text_.starts_with(mark)) continue;
      text_.remove_prefix(mark.size());
      return Token{Token::Kind::kMark, std::string(mark), line_};
    }
    token.kind = Token::Kind::kId;
    while (!text_.empty() && IsIdByte(text_.front())) {
      // A number may begin with "-", nothing else has one; and "a--b" is three words.
      token.text += text_.front();
      text_.remove_prefix(1);
    }
    if (token.text.empty()) return builder_.Wrong(line_, fmt::format("\"{}\" is not DOT", Shown(text_.substr(0, 1))));
    return token;
  }

 private:
  static bool IsIdByte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           static_cast<unsigned char>(c) >= 0x80;
  }

  Result<void> SkipBlanks() {
    while (!text_.empty()) {
      if (text_.front() == '\n') {
        ++line_;
        text_.remove_prefix(1);
      } else if (IsBlank(text_.front())) {
        text_.remove_prefix(1);
      } else if (text_.starts_with("//") || text_.front() == '#') {
        text_.remove_prefix(std::min(text_.find('\n'), text_.size()));
      } else if (text_.starts_with("/*")) {
        const std::size_t end = text_.find("*/", 2);
        if (end == std::string_view::npos) return builder_.Wrong(line_, "the comment has no end");
        line_ += static_cast<std::size_t>(std::ranges::count(text_.substr(0, end), '\n'));
        text_.remove_prefix(end + 2);
      } else {
        break;
      }
    }
    return {};
  }

  Result<Token> Quoted() {
    Token token{Token::Kind::kQuoted, "", line_};
    for (std::size_t i = 1; i < text_.size(); ++i) {
      if (text_[i] == '"') {
        text_.remove_prefix(i + 1);
        return token;
      }
      if (text_[i] == '\\' && i + 1 < text_.size() && (text_[i + 1] == '"' || text_[i + 1] == '\\')) ++i;
      if (text_[i] == '\n') ++line_;
      token.text += text_[i];
    }
    return builder_.Wrong(token.line, "the quotation mark has no partner");
  }

  std::string_view text_;
  const Builder& builder_;
  std::size_t line_ = 1;
};

class DotParser {
 public:
  DotParser(std::string_view text, std::string_view file) : builder_(file), lexer_(text, builder_) {}

  Result<NamedGraph> Parse() && {
    for (const auto step : {&DotParser::Header, &DotParser::Body}) {
      if (const auto done = (this->*step)(); !done) return tl::unexpected(done.error());
    }
    return std::move(builder_).Finish();
  }

 private:
  Result<void> Advance() {
    Result<Token> next = lexer_.Next();
    if (!next) return tl::unexpected(next.error());
    token_ = *std::move(next);
    return {};
  }

  tl::unexpected<Error> Wrong(std::string_view expected) const {
    const std::string found = token_.kind == Token::Kind::kEnd ? "the end" : "\"" + Shown(token_.text) + "\"";
    return builder_.Wrong(token_.line, fmt::format("{} where {} belongs", found, expected));
  }

  // [strict] graph [name] {
  Result<void> Header() {
    if (const auto done = Advance(); !done) return done;
    if (token_.IsWord("strict")) {
      if (const auto done = Advance(); !done) return done;
    }
    if (token_.IsWord("digraph")) return builder_.Wrong(token_.line, "links have no direction here: use graph and --");
    if (!token_.IsWord("graph")) return Wrong("\"graph\"");
    if (const auto done = Advance(); !done) return done;
    if (token_.IsId()) {
      if (const auto done = Advance(); !done) return done;
    }
    if (!token_.Is("{")) return Wrong("\"{\"");
    return Advance();
  }

  Result<void> Body() {
    while (!token_.Is("}")) {
      if (token_.Is(";")) {
        if (const auto done = Advance(); !done) return done;
        continue;
      }
      if (const auto done = Statement(); !done) return done;
    }
    if (const auto done = Advance(); !done) return done;
    return token_.kind == Token::Kind::kEnd ? Result<void>() : Wrong("the end");
  }

  // a -- b -- c [weight=2]; or: a [..]; or: name = value; or: node [..]; or, of links that come later: edge [..];
  Result<void> Statement() {
    if (token_.Is("{") || token_.IsWord("subgraph")) return builder_.Wrong(token_.line, "subgraphs are not understood");
    if (!token_.IsId()) return Wrong("a node");
    const bool of_links = token_.IsWord("edge"), defaults = of_links || token_.IsWord("node") || token_.IsWord("graph");
    std::vector<std::string> chain{token_.text};
    const std::size_t line = token_.line;
    if (const auto done = Advance(); !done) return done;
    if (token_.Is("=")) {
      if (const auto done = Advance(); !done) return done;
      return token_.IsId() ? Advance() : Wrong("a value");
    }
    while (token_.Is("--")) {
      if (const auto done = Advance(); !done) return done;
      if (token_.Is("{") || token_.IsWord("subgraph")) {
        return builder_.Wrong(token_.line, "subgraphs are not understood");
      }
      if (!token_.IsId()) return Wrong("a node");
      chain.push_back(token_.text);
      if (const auto done = Advance(); !done) return done;
    }
    if (token_.Is("->")) return builder_.Wrong(token_.line, "links have no direction here: use --");
    if (token_.Is(":")) return builder_.Wrong(token_.line, "ports are not understood");
    double weight = weight_;
    while (token_.Is("[")) {
      if (const auto done = Attributes(weight); !done) return done;
    }
    if (of_links) weight_ = weight;
    if (defaults) return {};
    if (chain.size() == 1) {
      const Result<std::uint32_t> node = builder_.Node(chain[0], line);
      if (!node) return tl::unexpected(node.error());
    }
    for (std::size_t i = 1; i < chain.size(); ++i) {
      if (const auto done = builder_.Add(chain[i - 1], chain[i], weight, line); !done) return done;
    }
    return {};
  }

  // [a=b, c=d; e=f]
  Result<void> Attributes(double& weight) {
    if (const auto done = Advance(); !done) return done;
    while (!token_.Is("]")) {
      if (token_.Is(",") || token_.Is(";")) {
        if (const auto done = Advance(); !done) return done;
        continue;
      }
      if (!token_.IsId()) return Wrong("an attribute or \"]\"");
      const bool is_weight = token_.text == "weight";
      if (const auto done = Advance(); !done) return done;
      if (!token_.Is("=")) return Wrong("\"=\"");
      if (const auto done = Advance(); !done) return done;
      if (!token_.IsId()) return Wrong("a value");
      if (is_weight) {
        const Result<double> parsed = builder_.Weight(token_.text, token_.line);
        if (!parsed) return tl::unexpected(parsed.error());
        weight = *parsed;
      }
      if (const auto done = Advance(); !done) return done;
    }
    return Advance();
  }

  Builder builder_;
  Lexer lexer_;
  Token token_;
  double weight_ = 1;    // of a link that says none
};

}    // namespace

Result<NamedGraph> ParseGraph(std::string_view text, std::string_view file) {
  if (text.size() > kGraphBytesMax) {
    return Fail(fmt::format("{}: {} bytes; at most {} are read", file, text.size(), kGraphBytesMax));
  }
  if (constexpr std::string_view kMark = "\xef\xbb\xbf"; text.starts_with(kMark)) text.remove_prefix(kMark.size());
  // DOT begins with a comment or one of three words; so could a list of links, but then without a "{".
  const Builder nobody(file);
  const Result<Token> first = Lexer(text, nobody).Next();
  const bool dot = first && (first->IsWord("graph") || first->IsWord("digraph") || first->IsWord("strict")) &&
                   text.find('{') != std::string_view::npos;
  return dot ? ParseDot(text, file) : ParseEdgeList(text, file);
}

Result<NamedGraph> ParseEdgeList(std::string_view text, std::string_view file) {
  Builder builder(file);
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::vector<std::string_view> words = SplitWords(line.substr(0, line.find('#')), kBlank);
    if (words.empty()) continue;
    if (words.size() != 2 && words.size() != 3) {
      return builder.Wrong(number, fmt::format("\"{}\": a line is \"a b [weight]\"", Shown(line)));
    }
    double weight = 1;
    if (words.size() == 3) {
      const Result<double> parsed = builder.Weight(words[2], number);
      if (!parsed) return tl::unexpected(parsed.error());
      weight = *parsed;
    }
    if (const auto added = builder.Add(words[0], words[1], weight, number); !added) {
      return tl::unexpected(added.error());
    }
  }
  return std::move(builder).Finish();
}

Result<NamedGraph> ParseDot(std::string_view text, std::string_view file) {
  return DotParser(text, file).Parse();
}

std::string NameOf(const HostSettings& host) {
  const std::string& name = host.settings.peers.name;
  return name.empty() ? std::filesystem::path(host.file).stem().string() : name;
}

Result<NamedGraph> FleetGraph(std::span<const HostSettings> hosts) {
  Builder builder("settings");
  std::map<std::string, std::string, std::less<>> owner;    // "host:port" to the name of a host
  std::vector<std::string> names;
  for (const HostSettings& host : hosts) {
    const auto& peers = host.settings.peers;
    names.push_back(NameOf(host));
    if (std::ranges::count(names, names.back()) > 1) {
      return Fail(fmt::format("{}: another file has a host {} too; set peers.name", host.file, names.back()));
    }
    if (const auto node = builder.Node(names.back(), 0); !node) return tl::unexpected(node.error());
    for (const std::string& at : {peers.bind.host, names.back()}) {
      const auto [seen, is_new] = owner.emplace(fmt::format("{}:{}", at, peers.bind.port), names.back());
      // Everybody may bind all addresses; that tells nobody from another.
      if (!is_new && seen->second != names.back()) seen->second.clear();
    }
  }
  std::vector<std::string> notes;
  std::set<std::pair<std::string, std::string>> linked;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    for (const std::string& text : hosts[i].settings.peers.connect) {
      const Result<PeerEntry> entry = ParsePeerEntry(text);
      if (!entry) return Fail(fmt::format("{}: {}", hosts[i].file, entry.error().message));
      const std::string address = entry->kind == PeerEntry::Kind::kService
                                      ? "srv://" + entry->host
                                      : fmt::format("{}:{}", entry->host, entry->port);
      const auto found = owner.find(address);
      std::string peer = found != owner.end() ? found->second : "";
      if (peer.empty() && std::ranges::find(names, entry->key_name) != names.end()) peer = entry->key_name;
      if (peer.empty()) {
        peer = address;
        notes.push_back(fmt::format("{}: {} is none of the hosts given, and counts as another", hosts[i].file, text));
      }
      if (peer == names[i]) continue;    // its own address, which settings for all hosts may hold
      if (!linked.insert(std::minmax(names[i], peer)).second) continue;    // both connect to each other: one link
      if (const auto added = builder.Add(names[i], peer, 1, 0); !added) return tl::unexpected(added.error());
    }
  }
  Result<NamedGraph> graph = std::move(builder).Finish();
  if (graph) graph->notes = std::move(notes);
  return graph;
}

}    // namespace dthrottle::plan
