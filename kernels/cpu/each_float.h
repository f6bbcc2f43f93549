/* each_float.h: includes TEMPLATE once per float type, with T and SUFFIX set; it undefines both. */
#define T float
#define SUFFIX f32
#include TEMPLATE
#define T double
#define SUFFIX f64
#include TEMPLATE
#undef TEMPLATE
