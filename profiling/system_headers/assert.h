#pragma once
// The compiler itself declares assert.
