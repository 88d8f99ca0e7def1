#include <array>
#include <string>

#include "base/log.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/inspect_command.hpp"
#include "cli/pack_command.hpp"

namespace offstage::cli {
namespace {

constexpr char const* data_usage =
    R"(Usage: offstage data inspect PATH[:WEIGHT][,PATH...] [--format=F] [--vocab=N] [--sequence=T]
                             [--separator=N] [--json]
                             [--show=N [--tokenizer=NAME]]
       offstage data pack --from TEXT... --to PREFIX --tokenizer=NAME [--option ...]
                             makes such a file from text; see offstage data pack --help

inspect reads files of tokens, named as in data.train, and says what is in them. A mask beside a
file (PREFIX.mask) is verified. Of several files it says their shares of a run's samples.
  --format     auto, text (every byte is a token), megatron (X.bin with X.idx), llmc, nanogpt,
               u32 [auto]
  --vocab      model.vocab: fails on the first token beyond it [16777216]
  --sequence   train.sequence: how many windows of so many tokens there are [1024]
  --separator  token that ends a document, for formats that do not store where they end
  --json       a line of JSON for each file, for scripts
  --show       the text of the first N documents too (of a file that does not tell them apart,
               windows): special tokens by their names, and {learn} and {/learn} around what
               counts; of each 4096 tokens at most
  --tokenizer  the tokenizer for it, as of data pack [the one that packed the file]

  offstage data inspect books --vocab=32000 --sequence=2048
  offstage data inspect chats --show=2
  offstage data inspect books.bin:0.7,wiki.bin:0.3)";

}  // namespace

ExitCode data_command(Arguments const& arguments) {
  bool const of_pack = !arguments.empty() && arguments.front() == "pack";
  if (!of_pack && (arguments.empty() || asks_for_help(arguments))) {
    log::write_lines(data_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  std::string const& command = arguments.front();
  Arguments const rest{arguments.begin() + 1, arguments.end()};
  if (command == "inspect") {
    return inspect_command(rest);
  }
  if (command == "pack") {
    return pack_command(rest);
  }
  static std::array<std::string, 2> const known{"inspect", "pack"};
  throw unknown_command(command, known);
}

}  // namespace offstage::cli
