// SPDX-License-Identifier: Apache-2.0
// TESSERA_VECTOR_CLONES: compiles a function for several x86 vector widths, chosen when the program is
// loaded. Nothing under sanitizers, whose start-up comes after that choice, and on other machines.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define TESSERA_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TESSERA_VECTOR_CLONES
#endif
