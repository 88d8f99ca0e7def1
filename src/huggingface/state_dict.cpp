#include "huggingface/state_dict.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "huggingface/tensor_entry.hpp"

namespace offstage::huggingface {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of pickles are little-endian");

/// A tensor takes some ten.
constexpr std::size_t most_values = 2'000'000;
constexpr std::size_t most_tensors = 200'000;
constexpr char const* wanted =
    "a state_dict of tensors alone is read, as save_pretrained(DIR) and "
    "torch.save(model.state_dict(), PATH) write it";

struct StorageType {
  char const* name;
  char const* dtype;
};
constexpr std::array<StorageType, 10> storage_types{{
    {"FloatStorage", "F32"},
    {"BFloat16Storage", "BF16"},
    {"HalfStorage", "F16"},
    {"DoubleStorage", "F64"},
    {"LongStorage", "I64"},
    {"IntStorage", "I32"},
    {"ShortStorage", "I16"},
    {"CharStorage", "I8"},
    {"ByteStorage", "U8"},
    {"BoolStorage", "BOOL"},
}};

struct Value;

struct None {};
struct Text {
  std::string_view text;  ///< of the pickle
};
struct Function {  ///< or a class
  std::string_view module;
  std::string_view name;

  [[nodiscard]] bool is(std::string_view other_module, std::string_view other_name) const {
    return module == other_module && name == other_name;
  }
  [[nodiscard]] std::string text() const {
    return printable_name(module) + "." + printable_name(name);
  }
};
struct Tuple {
  std::vector<Value*> items;
};
struct Dictionary {
  std::vector<std::pair<Value*, Value*>> items;
};
struct Storage {
  char const* dtype;
  std::string_view record;
  std::int64_t elements;
};
struct Tensor {
  PickledTensor tensor;
  char const* problem;  ///< nullptr: none
};
struct Value {
  std::variant<None, std::int64_t, Text, Function, Tuple, Dictionary, Storage, Tensor> is;
};

/// The machine for which a pickle is a program: values on a stack, marks in it, and values that are
/// kept under a number (the memo).
class Unpickler {
 public:
  Unpickler(std::string_view pickle, std::string const& path) : pickle_{pickle}, path_{path} {}

  /// The tensors of the dictionary at the end of the program.
  std::map<std::string, PickledTensor> run() {
    while (step()) {
    }
    std::map<std::string, PickledTensor> tensors;
    for (auto const& [key, value] : get<Dictionary>(*pop(), "dictionary of tensors").items) {
      auto const* const text = std::get_if<Text>(&key->is);
      std::string const name{text == nullptr ? "" : text->text};
      auto const* const found = std::get_if<Tensor>(&value->is);
      if (text == nullptr || found == nullptr) {
        refuse(fmt::format("has '{}', which is no tensor: {}", printable_name(name), wanted));
      }
      if (found->problem != nullptr) {
        refuse(fmt::format("has the tensor '{}' of {}, {}", printable_name(name),
                           shape_text(found->tensor.shape), found->problem));
      }
      if (!tensors.emplace(name, found->tensor).second) {
        refuse(fmt::format("has the tensor '{}' twice", printable_name(name)));
      }
      if (tensors.size() > most_tensors) {
        refuse(fmt::format("has more than {} tensors", most_tensors));
      }
    }
    return tensors;
  }

 private:
  [[noreturn]] void refuse(std::string const& what) const {
    throw DataError{fmt::format("{}: its pickle {}", path_, what)};
  }
  /// One opcode; false after the last one.
  bool step() {
    auto const opcode = take<std::uint8_t>();
    if (opcode == '.') {
      return false;
    }
    if (!take_literal(opcode) && !take_container(opcode) && !take_memo(opcode) &&
        !take_call(opcode)) {
      refuse(fmt::format("has the byte {:#x} at {}, where no step of a state_dict begins: {}",
                         opcode, at_ - 1, wanted));
    }
    return true;
  }

  /// Each of these takes a step of its kind and returns true, or takes none.
  bool take_literal(std::uint8_t opcode) {
    switch (opcode) {
      case 'N':
        push(None{});
        return true;
      case 'G':  // a float, which no tensor needs
        take(8);
        push(None{});
        return true;
      case 0x88:  // NEWTRUE
        push(std::int64_t{1});
        return true;
      case 0x89:  // NEWFALSE
        push(std::int64_t{0});
        return true;
      case 'J':
        push(std::int64_t{take<std::int32_t>()});
        return true;
      case 'K':
        push(std::int64_t{take<std::uint8_t>()});
        return true;
      case 'M':
        push(std::int64_t{take<std::uint16_t>()});
        return true;
      case 0x8a:  // LONG1
        push(long_number(take(take<std::uint8_t>())));
        return true;
      case 'X':
        push(Text{take(take<std::uint32_t>())});
        return true;
      case 0x8c:  // SHORT_BINUNICODE
        push(Text{take(take<std::uint8_t>())});
        return true;
      default:
        return false;
    }
  }

  bool take_container(std::uint8_t opcode) {
    switch (opcode) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        push(Tuple{});
        return true;
      case 0x85:  // TUPLE1
      case 0x86:
      case 0x87:
        push(Tuple{pop_down_to(depth_of(opcode - 0x84U))});
        return true;
      case 't':
        push(Tuple{pop_down_to(pop_mark())});
        return true;
      case '}':
        push(Dictionary{});
        return true;
      case 's':
        set_items(depth_of(2));
        return true;
      case 'u':
        set_items(pop_mark());
        return true;
      case ']':  // a list, which no tensor needs
        push(None{});
        return true;
      case 'a':
        pop();
        return true;
      case 'e':
        pop_down_to(pop_mark());
        return true;
      default:
        return false;
    }
  }

  bool take_memo(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        take(1);
        return true;
      case 0x95:  // FRAME
        take(8);
        return true;
      case 'q':
        keep(take<std::uint8_t>());
        return true;
      case 'r':
        keep(take<std::uint32_t>());
        return true;
      case 0x94:  // MEMOIZE
        keep(memo_.size());
        return true;
      case 'h':
        recall(take<std::uint8_t>());
        return true;
      case 'j':
        recall(take<std::uint32_t>());
        return true;
      default:
        return false;
    }
  }

  bool take_call(std::uint8_t opcode) {
    switch (opcode) {
      case 'c': {
        auto const module = take_line();
        push(Function{module, take_line()});
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        auto const name = get<Text>(*pop(), "name of a function").text;
        auto const module = get<Text>(*pop(), "module of a function").text;
        push(Function{module, name});
        return true;
      }
      case 'Q':
        push(storage(get<Tuple>(*pop(), "storage")));
        return true;
      case 'R': {
        Tuple const& arguments = get<Tuple>(*pop(), "list of arguments");
        call(get<Function>(*pop(), "function"), arguments);
        return true;
      }
      case 'b':  // attributes of a dictionary, such as _metadata
        pop();
        get<Dictionary>(top(), "object with attributes");
        return true;
      default:
        return false;
    }
  }

  /// The value as a T. Errors: DataError if it is something else than `what`.
  template <class T>
  T& get(Value& value, char const* what) const {
    auto* const found = std::get_if<T>(&value.is);
    if (found == nullptr) {
      refuse(fmt::format("has something else where a {} belongs", what));
    }
    return *found;
  }

  std::string_view take(std::size_t count) {
    if (count > pickle_.size() - at_) {
      refuse("is cut short");
    }
    return pickle_.substr(std::exchange(at_, at_ + count), count);
  }
  template <class T>
  T take() {
    T number;
    std::memcpy(&number, take(sizeof(T)).data(), sizeof(T));
    return number;
  }
  std::string_view take_line() {
    std::size_t const end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) {
      refuse("is cut short");
    }
    auto const line = take(end - at_);
    take(1);
    return line;
  }

  /// Two's complement, of as many bytes as are needed.
  std::int64_t long_number(std::string_view bytes) const {
    if (bytes.size() > sizeof(std::int64_t)) {
      refuse("has a number of more than 64 bits");
    }
    bool const negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
    std::int64_t number = negative ? -1 : 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }

  template <class T>
  void push(T value) {
    if (values_.size() >= most_values) {
      refuse(fmt::format("makes more than {} values", most_values));
    }
    stack_.push_back(&values_.emplace_back(Value{std::move(value)}));
  }
  Value* pop() {
    Value* const value = &top();
    stack_.pop_back();
    return value;
  }
  Value& top() { return *stack_.at(depth_of(1)); }
  /// The depth of the stack below its last `count` values.
  std::size_t depth_of(std::size_t count) const {
    std::size_t const bottom = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() < bottom + count) {
      refuse("takes a value that it did not put there");
    }
    return stack_.size() - count;
  }
  std::size_t pop_mark() {
    if (marks_.empty()) {
      refuse("takes a value that it did not put there");
    }
    std::size_t const depth = marks_.back();
    marks_.pop_back();
    return depth;
  }
  std::vector<Value*> pop_down_to(std::size_t depth) {
    std::vector<Value*> values(stack_.begin() + static_cast<std::ptrdiff_t>(depth), stack_.end());
    stack_.resize(depth);
    return values;
  }

  void set_items(std::size_t depth) {
    auto const more = pop_down_to(depth);
    auto& items = get<Dictionary>(top(), "dictionary").items;
    if (more.size() % 2 != 0) {
      refuse("has a key without a value");
    }
    for (std::size_t i = 0; i < more.size(); i += 2) {
      items.emplace_back(more[i], more[i + 1]);
    }
  }

  void keep(std::size_t number) {
    if (memo_.size() >= most_values) {
      refuse(fmt::format("keeps more than {} values", most_values));
    }
    memo_[number] = &top();
  }
  void recall(std::size_t number) {
    auto const kept = memo_.find(number);
    if (kept == memo_.end()) {
      refuse("recalls a value that it did not keep");
    }
    stack_.push_back(kept->second);
  }

  /// A persistent ID: ('storage', its type, record, device, elements).
  Storage storage(Tuple const& id) const {
    if (id.items.size() != 5 || get<Text>(*id.items[0], "word").text != "storage") {
      refuse("names something outside of it that is no storage");
    }
    auto const& type = get<Function>(*id.items[1], "type of a storage");
    auto const record = get<Text>(*id.items[2], "record").text;
    if (record.size() > longest_name) {
      refuse(fmt::format("names the record '{}'", printable_name(record)));
    }
    for (StorageType const& known : storage_types) {
      if (type.is("torch", known.name)) {
        return {known.dtype, record, get<std::int64_t>(*id.items[4], "number of elements")};
      }
    }
    refuse(fmt::format("has a storage of the type {}, which is not known", type.text()));
  }

  void call(Function const& function, Tuple const& arguments) {
    if (function.is("collections", "OrderedDict") && arguments.items.empty()) {
      push(Dictionary{});
    } else if (function.is("torch._utils", "_rebuild_tensor_v2") && arguments.items.size() >= 4) {
      push(tensor(arguments));
    } else if ((function.is("torch._utils", "_rebuild_parameter") ||
                function.is("torch._utils", "_rebuild_parameter_with_state")) &&
               !arguments.items.empty()) {
      get<Tensor>(*arguments.items[0], "tensor");
      stack_.push_back(arguments.items[0]);
    } else {
      refuse(fmt::format("calls {}, which is not run: {}", function.text(), wanted));
    }
  }

  /// Arguments of _rebuild_tensor_v2: storage, first element, shape, strides, and what is no part
  /// of the numbers; then attributes of views.
  Tensor tensor(Tuple const& arguments) {
    if (++tensors_ > most_tensors) {
      refuse(fmt::format("makes more than {} tensors", most_tensors));
    }
    auto const& storage = get<Storage>(*arguments.items[0], "storage of a tensor");
    PickledTensor made{.dtype = storage.dtype,
                       .record = std::string{storage.record},
                       .first = get<std::int64_t>(*arguments.items[1], "place of a tensor"),
                       .shape = numbers(*arguments.items[2], "shape")};
    auto const* problem =
        problem_of(made, storage.elements, numbers(*arguments.items[3], "strides"));
    if (arguments.items.size() > 6 &&
        !get<Dictionary>(*arguments.items[6], "dictionary of attributes").items.empty()) {
      problem = "which is a negated or conjugated view; save it with .resolve_neg()";
    }
    return {std::move(made), problem};
  }
  static char const* problem_of(PickledTensor const& tensor, std::int64_t stored,
                                std::vector<std::int64_t> const& strides) {
    if (strides.size() != tensor.shape.size()) {
      return "which has another number of strides";
    }
    std::int64_t elements = 1;
    for (std::size_t i = strides.size(); i-- > 0;) {
      std::int64_t const length = tensor.shape[i];
      if (length == 0) {
        return "which has no elements: where ZeRO-3 keeps them elsewhere, DeepSpeed's "
               "zero_to_fp32.py brings them together";
      }
      if (length < 0 || length > stored / elements) {
        return "which its storage cannot hold";
      }
      if (length > 1 && strides[i] != elements) {
        return "which is transposed or strided; save it with .contiguous()";
      }
      elements *= length;
    }
    bool const is_inside =
        elements <= stored && tensor.first >= 0 && tensor.first <= stored - elements;
    return is_inside ? nullptr : "which its storage cannot hold";
  }
  std::vector<std::int64_t> numbers(Value& value, char const* what) const {
    auto const& items = get<Tuple>(value, what).items;
    if (items.size() > most_dimensions) {
      refuse(fmt::format("has a {} of more than {} numbers", what, most_dimensions));
    }
    std::vector<std::int64_t> numbers;
    for (Value* const each : items) {
      numbers.push_back(get<std::int64_t>(*each, what));
    }
    return numbers;
  }

  std::string_view pickle_;
  std::string const& path_;
  std::size_t at_ = 0;
  std::deque<Value> values_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::size_t, Value*> memo_;
  std::size_t tensors_ = 0;
};

}  // namespace

std::map<std::string, PickledTensor> read_state_dict(std::string_view pickle,
                                                     std::string const& path) {
  return Unpickler{pickle, path}.run();
}

}  // namespace offstage::huggingface
