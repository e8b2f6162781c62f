#pragma once
// The compiler itself declares printf, alone of what is here elsewhere.
#include <stddef.h>
