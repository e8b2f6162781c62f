#pragma once
// The compiler itself declares memcpy and memset, alone of what is here elsewhere.
#include <stddef.h>
