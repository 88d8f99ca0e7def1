#pragma once

#include <cstdint>
#include <string_view>

namespace offstage::tensorboard {

/// CRC-32C, of polynomial 0x1EDC6F41, as iSCSI has it (RFC 3720, appendix B.4).
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

/// The same as TFRecord stores it: rotated, and a constant added, so that the checksum of something
/// that has checksums inside is no special value. Source: TensorFlow, core/lib/hash/crc32c.h.
[[nodiscard]] std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace offstage::tensorboard
