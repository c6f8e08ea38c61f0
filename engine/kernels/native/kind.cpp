// Which of the integer paths this library was compiled with.

extern "C" const char *vox_kind() {
#if defined(__ARM_FEATURE_DOTPROD)
    return "neon dotprod";
#elif defined(__AVX512VNNI__) && defined(__AVX512F__) && defined(__AVX512BW__)
    return "avx512 vnni";
#elif defined(__AVX2__) && defined(__FMA__)
    return "avx2";
#else
    return "portable";
#endif
}
