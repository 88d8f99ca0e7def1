#include "kernels/amx_on_cpu.hpp"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace offstage {
namespace {

constexpr std::size_t tiles = 8;
constexpr std::size_t most_rows = 16;
constexpr std::size_t row_size = 64;

/// As LDTILECFG reads it.
struct Shapes {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(Shapes) == 64);

/// A thread's registers.
struct Registers {
  Shapes shapes;  ///< palette 0: not configured
  std::byte tile[tiles][most_rows][row_size];
};
thread_local Registers registers;
std::atomic<std::int64_t> products_so_far{0};
struct sigaction previous;

[[noreturn]] void refuse(char const* what) {
  static_cast<void>(write(STDERR_FILENO, "AMX: ", 5));
  static_cast<void>(write(STDERR_FILENO, what, std::strlen(what)));
  static_cast<void>(write(STDERR_FILENO, "\n", 1));
  std::_Exit(EXIT_FAILURE);
}

/// One instruction: VEX prefix of three bytes, opcode, ModRM, SIB and displacement.
class Instruction {
 public:
  explicit Instruction(greg_t const* state)
      : state_{state}, code_{reinterpret_cast<std::uint8_t const*>(state[REG_RIP])} {
    if (!is_vex()) {
      return;
    }
    length_ = 5;
    if (mode() == 3) {
      return;
    }
    bool const has_sib = rm() == 4;
    length_ += has_sib ? 1 : 0;
    std::uint8_t const sib = code_[5];
    unsigned const low_base = has_sib ? sib & 7U : rm();
    bool const has_base = !(mode() == 0 && low_base == 5);
    std::int64_t displacement = 0;
    if (mode() == 1) {
      displacement = static_cast<std::int8_t>(code_[length_]);
      length_ += 1;
    } else if (mode() == 2 || !has_base) {
      std::int32_t four{};
      std::memcpy(&four, code_ + length_, sizeof four);
      displacement = four;
      length_ += 4;
    }
    address_ = displacement;
    if (has_base) {
      address_ += general(low_base | extension(5));
    } else if (!has_sib) {  // relative to the next instruction
      address_ += state_[REG_RIP] + static_cast<std::int64_t>(length_);
    }
    unsigned const index = (sib >> 3 & 7U) | extension(6);
    if (has_sib && index != 4) {
      stride_ = general(index) << (sib >> 6);
    }
  }

  /// In the opcode map 0F 38, 128 bits, W 0.
  [[nodiscard]] bool is_vex() const {
    return code_[0] == 0xC4 && (code_[1] & 0x1F) == 2 && (code_[2] & 0x84) == 0;
  }
  [[nodiscard]] unsigned prefix() const { return code_[2] & 3U; }  // none, 66, F3, F2
  [[nodiscard]] unsigned opcode() const { return code_[3]; }
  [[nodiscard]] unsigned mode() const { return code_[4] >> 6; }
  [[nodiscard]] unsigned reg() const { return code_[4] >> 3 & 7U; }
  [[nodiscard]] unsigned rm() const { return code_[4] & 7U; }
  [[nodiscard]] unsigned third() const { return ~(code_[2] >> 3) & 7U; }
  [[nodiscard]] std::size_t length() const { return length_; }
  /// Of the first byte, and from one row to the next.
  [[nodiscard]] std::byte* memory() const { return reinterpret_cast<std::byte*>(address_); }
  [[nodiscard]] std::int64_t stride() const { return stride_; }

 private:
  /// A bit of the prefix, which is stored inverted, in a register's number.
  [[nodiscard]] unsigned extension(unsigned bit) const {
    return (~unsigned{code_[1]} >> bit & 1U) << 3;
  }
  [[nodiscard]] std::int64_t general(unsigned number) const {
    constexpr std::array order{REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                               REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                               REG_R12, REG_R13, REG_R14, REG_R15};
    return state_[order[number]];
  }

  greg_t const* state_;
  std::uint8_t const* code_;
  std::size_t length_ = 0;
  std::int64_t address_ = 0;
  std::int64_t stride_ = 0;
};

void configure(std::byte const* from) {
  Shapes shapes;
  std::memcpy(&shapes, from, sizeof shapes);
  if (shapes.palette != 1 || shapes.start_row != 0) {
    refuse("LDTILECFG takes palette 1 and starts at row 0");
  }
  for (std::uint8_t const byte : shapes.reserved) {
    if (byte != 0) {
      refuse("LDTILECFG wants reserved bytes to be zero");
    }
  }
  for (std::size_t i = 0; i < 16; ++i) {
    bool const empty = shapes.rows[i] == 0 && shapes.row_bytes[i] == 0;
    bool const whole = shapes.rows[i] > 0 && shapes.row_bytes[i] > 0;
    if (!(i < tiles ? empty || whole : empty) || shapes.rows[i] > most_rows ||
        shapes.row_bytes[i] > row_size) {
      refuse("LDTILECFG wants eight tiles of up to 16 rows of up to 64 bytes");
    }
  }
  registers = {};
  registers.shapes = shapes;
}

void require_tile(unsigned tile) {
  if (registers.shapes.palette == 0 || registers.shapes.rows[tile] == 0) {
    refuse("a tile register is not configured");
  }
}

/// Copies rows between a tile and memory.
void move(Instruction const& at, bool load) {
  unsigned const tile = at.reg();
  require_tile(tile);
  if (at.rm() != 4) {
    refuse("tiles are moved by an address with an index alone");
  }
  std::size_t const bytes = registers.shapes.row_bytes[tile];
  for (std::size_t row = 0; row < registers.shapes.rows[tile]; ++row) {
    std::byte* const memory = at.memory() + static_cast<std::int64_t>(row) * at.stride();
    std::byte* const own = registers.tile[tile][row];
    std::memcpy(load ? own : memory, load ? memory : own, bytes);
  }
  if (load) {
    for (std::size_t row = 0; row < most_rows; ++row) {
      std::size_t const used = row < registers.shapes.rows[tile] ? bytes : 0;
      std::memset(registers.tile[tile][row] + used, 0, row_size - used);
    }
  }
}

/// Subnormals are zero, in and out.
[[gnu::always_inline]] inline float flushed(float x) {
  return __builtin_fabsf(x) < 0x1p-126F ? __builtin_copysignf(0.0F, x) : x;
}

/// A row of pairs of bf16.
struct Pairs {
  float first[row_size / 4];
  float second[row_size / 4];
};

[[gnu::always_inline]] inline Pairs pairs_of(unsigned tile, std::size_t row) {
  Pairs pairs;
  for (std::size_t i = 0; i < row_size / 4; ++i) {
    std::uint32_t both{};
    std::memcpy(&both, registers.tile[tile][row] + 4 * i, sizeof both);
    pairs.first[i] = flushed(std::bit_cast<float>(both << 16));
    pairs.second[i] = flushed(std::bit_cast<float>(both & 0xFFFF0000U));
  }
  return pairs;
}

// Builtins, as no function of another target is inlined. Most of these tests' time passes here.
[[gnu::target("avx2,fma"), gnu::optimize("O3")]] void multiply(unsigned c, unsigned a, unsigned b) {
  for (unsigned const tile : {c, a, b}) {
    require_tile(tile);
  }
  auto const& [palette, start, reserved, row_bytes, rows] = registers.shapes;
  std::size_t const depth = row_bytes[a] / 4;
  if (c == a || c == b || a == b || rows[c] != rows[a] || row_bytes[c] != row_bytes[b] ||
      rows[b] != depth || row_bytes[a] % 4 != 0 || row_bytes[b] % 4 != 0) {
    refuse("TDPBF16PS wants three tiles whose shapes go together");
  }
  std::array<Pairs, most_rows> right;
  for (std::size_t k = 0; k < depth; ++k) {
    right[k] = pairs_of(b, k);
  }
  for (std::size_t m = 0; m < rows[c]; ++m) {
    Pairs const left = pairs_of(a, m);
    Pairs sums{};
    for (std::size_t k = 0; k < depth; ++k) {
      for (std::size_t n = 0; n < row_size / 4; ++n) {
        sums.first[n] = flushed(__builtin_fmaf(left.first[k], right[k].first[n], sums.first[n]));
        sums.second[n] =
            flushed(__builtin_fmaf(left.second[k], right[k].second[n], sums.second[n]));
      }
    }
    for (std::size_t n = 0; n < row_bytes[c] / 4U; ++n) {
      float sum{};
      std::byte* const place = registers.tile[c][m] + 4 * n;
      std::memcpy(&sum, place, sizeof sum);
      sum = flushed(flushed(sum) + flushed(sums.first[n] + sums.second[n]));
      std::memcpy(place, &sum, sizeof sum);
    }
  }
  ++products_so_far;
}

bool carry_out(Instruction const& at) {
  if (!at.is_vex()) {
    return false;
  }
  enum Prefix : unsigned { none, x66, xf3, xf2 };
  bool const in_memory = at.mode() != 3;
  auto const is = [&](unsigned opcode, unsigned prefix, bool memory) {
    return at.opcode() == opcode && at.prefix() == prefix && in_memory == memory;
  };
  if (is(0x49, none, true)) {
    configure(at.memory());
  } else if (is(0x49, none, false) && at.reg() == 0 && at.rm() == 0) {
    registers = {};
  } else if (is(0x49, xf2, false) && at.rm() == 0) {
    require_tile(at.reg());
    std::memset(registers.tile[at.reg()], 0, sizeof registers.tile[0]);
  } else if (is(0x4B, xf2, true)) {
    move(at, true);
  } else if (is(0x4B, xf3, true)) {
    move(at, false);
  } else if (is(0x5C, xf3, false)) {
    multiply(at.reg(), at.rm(), at.third());
  } else {
    return false;
  }
  return true;
}

void handle(int, siginfo_t*, void* context) {
  greg_t* const state = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction const instruction{state};
  if (!carry_out(instruction)) {
    refuse("an illegal instruction that the stand-in does not know");
  }
  state[REG_RIP] += static_cast<greg_t>(instruction.length());
}

}  // namespace

AmxOnCpu::AmxOnCpu() {
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &previous);
}

AmxOnCpu::~AmxOnCpu() {
  sigaction(SIGILL, &previous, nullptr);
}

std::int64_t AmxOnCpu::products() {
  return products_so_far;
}

}  // namespace offstage
