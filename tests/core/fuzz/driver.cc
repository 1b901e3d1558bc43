// Runs a fuzz target without libFuzzer: every file of the corpus, then mutations of them.
//
//     TARGET [-runs=N] [-max_total_time=SECONDS] [-seed=S] [-artifact_prefix=PATH]
//            FILE_OR_FOLDER...
//
// Flags are those of libFuzzer, the last counts. The same seed gives the same inputs. An input that
// ends the process, or takes longer than kPatience, is written to PATHcrash-NUMBER first.

#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../native/harness.h"
#include "fuzzer.h"

namespace {

using cachecd::native::Bytes;
using cachecd::native::Random;

constexpr unsigned kPatience = 30;  // seconds an input may take
constexpr uint64_t kMostInARow = 4;
constexpr size_t kMostBytes = 1 << 14;

Random chance(1);

// What SaveInput writes; it runs where nothing can be allocated.
char artifact[4096];
const uint8_t* running = nullptr;
size_t running_size = 0;

void SaveInput() {
  if (running == nullptr) return;
  const int fd = open(artifact, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, running, running_size) != static_cast<ssize_t>(running_size)) return;
  close(fd);
  running = nullptr;
  std::fprintf(stderr, "the input is in %s\n", artifact);
}

void OnSignal(int number) {
  if (number == SIGALRM) std::fprintf(stderr, "the input takes more than %u s\n", kPatience);
  SaveInput();
  signal(number, SIG_DFL);
  raise(number);
}

void Run(const Bytes& input, const std::string& prefix, uint64_t number) {
  std::snprintf(artifact, sizeof artifact, "%scrash-%llu", prefix.c_str(),
                static_cast<unsigned long long>(number));
  // Of its very size, so that whoever reads beyond it is found.
  const Bytes exact(input.begin(), input.end());
  running_size = exact.size();
  running = exact.data();
  alarm(kPatience);
  EXPECT(LLVMFuzzerTestOneInput(exact.data(), exact.size()) == 0);
  running = nullptr;
}

// Sizes, counts and offsets that are likely to be wrong somewhere.
uint64_t Interesting(size_t size) {
  const uint64_t values[] = {0,           1,          2,        15,         16,
                             17,          127,        128,      255,        256,
                             size,        size - 1,   size + 1, size / 2,   0x7fffffff,
                             0x80000000u, UINT32_MAX, 1u << 20, 1ull << 32, INT64_MAX,
                             1ull << 63,  UINT64_MAX, -16ull,   -20ull,     UINT64_MAX / 20};
  return values[chance.Below(sizeof values / sizeof *values)];
}

size_t MutateOnce(uint8_t* data, size_t size, size_t most) {
  if (size == 0) {
    if (most != 0) data[0] = static_cast<uint8_t>(chance.Next());
    return most != 0;
  }
  const size_t at = chance.Below(size);
  const size_t length = 1 + chance.Below(std::min<size_t>(size - at, 64));
  switch (chance.Below(8)) {
    case 0:
      data[at] ^= static_cast<uint8_t>(1u << chance.Below(8));
      return size;
    case 1:
      data[at] = static_cast<uint8_t>(chance.Next());
      return size;
    case 2:  // truncate
      return at;
    case 3:  // remove
      std::memmove(data + at, data + at + length, size - at - length);
      return size - length;
    case 4:  // repeat
      if (size + length > most) return size;
      std::memmove(data + at + length, data + at, size - at);
      return size + length;
    case 5:  // insert
      if (size + length > most) return size;
      std::memmove(data + at + length, data + at, size - at);
      for (size_t i = 0; i < length; ++i) data[at + i] = static_cast<uint8_t>(chance.Next());
      return size + length;
    case 6:  // copy elsewhere
      std::memmove(data + chance.Below(size - length + 1), data + at, length);
      return size;
    default: {
      const uint64_t value = Interesting(size);
      std::memcpy(data + at, &value,
                  std::min(size - at, size_t{1} << chance.Below(4)));  // little-endian
      return size;
    }
  }
}

std::vector<Bytes> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (std::filesystem::is_directory(path)) {
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        files.push_back(entry.path().string());
      }
    } else {
      files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const std::string& file : files) corpus.push_back(cachecd::native::ReadFile(file));
  return corpus;
}

Bytes Mutated(const std::vector<Bytes>& corpus) {
  Bytes input = corpus[chance.Below(corpus.size())];
  size_t size = std::min(input.size(), kMostBytes);
  input.resize(kMostBytes);
  for (uint64_t left = 1 + chance.Below(kMostInARow); left > 0; --left) {
    size =
        LLVMFuzzerCustomMutator(input.data(), size, kMostBytes, static_cast<unsigned int>(chance.Next()));
    EXPECT(size <= kMostBytes);
  }
  input.resize(size);
  return input;
}

}  // namespace

size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most) {
  return MutateOnce(data, size, most);
}

int main(int count, char** arguments) {
  uint64_t runs = UINT64_MAX, seconds = UINT64_MAX, seed = 1;
  std::string prefix;
  std::vector<std::string> paths;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (argument[0] != '-') {
      paths.push_back(argument);
    } else if (name == "-artifact_prefix") {
      prefix = value;
    } else if (name == "-runs") {
      runs = std::stoull(value);
    } else if (name == "-max_total_time") {
      seconds = std::stoull(value);
    } else if (name == "-seed") {
      seed = std::stoull(value);
    } else {
      std::fprintf(stderr, "unknown flag %s\n", argument.c_str());
      return 2;
    }
  }
  const std::vector<Bytes> corpus = ReadCorpus(paths);
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus: give files or folders\n");
    return 2;
  }
  for (const int number : {SIGABRT, SIGALRM}) signal(number, OnSignal);
  __sanitizer_set_death_callback(SaveInput);

  const auto began = std::chrono::steady_clock::now();
  const auto taken = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  for (size_t i = 0; i < corpus.size(); ++i) Run(corpus[i], prefix, i);
  chance = Random(seed);
  uint64_t done = 0;
  for (; done < runs && taken() < static_cast<double>(seconds); ++done) {
    Run(Mutated(corpus), prefix, corpus.size() + done);
  }
  std::printf("%zu files, %llu mutations, seed %llu, %.1f s\n", corpus.size(),
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(seed),
              taken());
  return 0;
}
