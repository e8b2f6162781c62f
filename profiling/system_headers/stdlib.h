#pragma once
// The compiler itself declares abs and labs, alone of what is here elsewhere.
#include <stddef.h>
