// The threads that share a loop with its caller. One loop at a time; a second caller runs its loop alone.
#pragma once

#include <cstdint>
#include <type_traits>

namespace vox {

using Body = void (*)(void *context, int64_t unit);

int threads();
void run_units(int64_t units, Body body, void *context);

// Calls body(unit) for every unit, in any order, on all threads; returns when all are done.
template <class Function> void parallel(int64_t units, Function &&body) {
    run_units(units, [](void *context, int64_t unit) { (*static_cast<std::remove_reference_t<Function> *>(context))(unit); },
              &body);
}

}  // namespace vox
