// Writes what the tables of keys and of counts say into the places where people read it. scripts/docs runs it and a
// test compares.
//
//   dthrottle-docs example                    conf/dthrottled.toml
//   dthrottle-docs fill < page.in > page      a manual page with @KEYS@, @COUNTS@, @METRICS@ filled in
#include <iostream>
#include <iterator>
#include <string>

#include "admin/counts.h"
#include "admin/metrics.h"
#include "config/keys.h"

namespace {

void Fill(std::string& page, const std::string& placeholder, const std::string& text) {
  const std::size_t at = page.find(placeholder);
  if (at != std::string::npos) page.replace(at, placeholder.size() + 1, text);    // and its line's end
}

}    // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "example") {
    std::cout << dthrottle::RenderExample();
  } else if (what == "fill") {
    std::string page{std::istreambuf_iterator<char>(std::cin), {}};
    Fill(page, "@KEYS@", dthrottle::RenderManual());
    Fill(page, "@COUNTS@", dthrottle::RenderCountsManual());
    Fill(page, "@METRICS@", dthrottle::RenderMetricsManual());
    std::cout << page;
  } else {
    std::cerr << "usage: dthrottle-docs example | dthrottle-docs fill < page.in\n";
    return 64;
  }
}
