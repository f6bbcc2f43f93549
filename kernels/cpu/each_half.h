/* each_half.h: includes TEMPLATE for bf16 and f16 (T: raw bits), with T and SUFFIX set; it undefines both. */
#define T uint16_t
#define SUFFIX bf16
#include TEMPLATE
#define T uint16_t
#define SUFFIX f16
#include TEMPLATE
#undef TEMPLATE
