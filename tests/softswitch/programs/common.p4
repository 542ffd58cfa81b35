// What the test programs share: a test header and empty v1model controls.
#include <core.p4>
#include <v1model.p4>

#define EMPTY_CONTROL(NAME, H, M) \
    control NAME(inout H hdr, inout M meta) { apply { } }

#define EMPTY_PIPELINE(NAME, H, M) \
    control NAME(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata) { apply { } }
