#pragma once
#include "tests/cuda_emulator/emulator.h"
