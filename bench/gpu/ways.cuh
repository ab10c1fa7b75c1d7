// SPDX-License-Identifier: Apache-2.0
// Written by go test ./bench/gpu -update. DO NOT EDIT.
// What a rank sends to itself.
#pragma once
#include <cstddef>

struct way {
  size_t bytes;
  int threads;
};
constexpr way ways[] = {
    {8, 1},
    {128, 1},
    {4096, 1},
    {8, 32},
    {128, 32},
    {4096, 32},
    {65536, 32},
    {8, 256},
    {128, 256},
    {4096, 256},
    {7168, 256},
    {14336, 256},
    {65536, 256},
    {8, 1024},
    {128, 1024},
    {4096, 1024},
    {7168, 1024},
    {14336, 1024},
    {65536, 1024},
    {1048576, 1024},
    {4194304, 1024},
};
