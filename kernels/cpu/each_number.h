/* each_number.h: includes TEMPLATE once per number type, with T and SUFFIX set; it undefines both. */
#define T float
#define SUFFIX f32
#include TEMPLATE
#define T double
#define SUFFIX f64
#include TEMPLATE
#define T int64_t
#define SUFFIX i64
#include TEMPLATE
#define T int32_t
#define SUFFIX i32
#include TEMPLATE
#define T int16_t
#define SUFFIX i16
#include TEMPLATE
#define T int8_t
#define SUFFIX i8
#include TEMPLATE
#define T uint64_t
#define SUFFIX u64
#include TEMPLATE
#define T uint32_t
#define SUFFIX u32
#include TEMPLATE
#define T uint16_t
#define SUFFIX u16
#include TEMPLATE
#define T uint8_t
#define SUFFIX u8
#include TEMPLATE
#undef TEMPLATE
