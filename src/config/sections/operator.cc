// The section [operator] of the settings.
#include "config/kinds.h"
#include "config/sections.h"

namespace dthrottle {

Section OperatorSection() {
  using S = Settings;
  return {
      "operator",
      "Who may set limits while daemons run (dthrottlectl limit), on all hosts at once. What is set holds before what "
      "rules and overrides say, also after restarts.",
      {
          Reloads(TextList<S>(
              "keys", "a list of names with public keys such as \"alice 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"",
              MEMBER(S, operators.keys),
              "The operators: a name, and the public key that dthrottlectl limit keygen has shown. A limit that one of "
              "them has signed is taken wherever it comes from, and passed on to all hosts. Without keys, whoever may "
              "write to admin.unix may set limits for this host alone.",
              [](const std::string& text) { return ParseOperatorKey(text).has_value(); })),
          Text<S>("limits_file", "\"\"", "an absolute path, or \"\" for beside the table",
                  MEMBER(S, operators.limits_file),
                  "Where limits that were set are kept. Beside the table, in a file of its name and \".limits\", they "
                  "outlive the daemon but, in memory, not the machine; a host with peers has them again at once.",
                  IsPath),
          Reloads(Text<S>("http_token_file", "\"\"", "an absolute path, or \"\" for none",
                          MEMBER(S, operators.http_token_file),
                          "A file whose first line is a token of 16 characters or more. A program that shows it may "
                          "POST /limit. A reload reads it again.",
                          IsPath)),
          Reloads(Text<S>("http_key_file", "\"\"", "an absolute path, or \"\" for none",
                          MEMBER(S, operators.http_key_file),
                          "The key that such a limit is signed with, of one of *keys*. Without it nothing is set over "
                          "HTTP where there are *keys*. A reload reads it again.",
                          IsPath)),
      }};
}

}    // namespace dthrottle
