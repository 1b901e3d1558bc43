// A keyed bijection of [0, n) in O(1) memory. Version 1, frozen by tests: another algorithm needs
// another version.
// A balanced Feistel network permutes [0, 4^h), the smallest such domain that contains [0, n).
// Cycle walking keeps the results in [0, n) (Black and Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002). n is more than a quarter of the domain, so a walk has at most four steps
// on average. Immutable, so thread-safe.

#ifndef CACHECD_CORE_PERMUTATION_H_
#define CACHECD_CORE_PERMUTATION_H_

#include <array>
#include <cstdint>

namespace cachecd {

constexpr int kPermutationVersion = 1;

class Permutation {
 public:
  Permutation(uint64_t n, uint64_t key);

  uint64_t size() const { return n_; }

  // Returns the image of `position`, which must be below size().
  uint64_t operator[](uint64_t position) const;

 private:
  // Chosen by a chi-square test of images and of pairs of images, over 400,000 keys. Six rounds are
  // uneven on domains of up to 16 (by 390 standard deviations for n = 5), and even on larger
  // domains. Twelve rounds are even on all domains.
  static constexpr int kRounds = 6;
  static constexpr int kRoundsOfSmall = 12;
  static constexpr int kSmallHalfBits = 4;

  uint64_t n_;
  int half_bits_;
  uint64_t half_mask_;
  int rounds_;
  std::array<uint64_t, kRoundsOfSmall> round_keys_;
};

}  // namespace cachecd

#endif  // CACHECD_CORE_PERMUTATION_H_
