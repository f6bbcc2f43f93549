/* tests/unit/port.h: a port for ranks that meet over the loopback. */
#ifndef SHARDC_TEST_PORT_H
#define SHARDC_TEST_PORT_H

int free_port(void); /* one that nobody has now; 0: none */

#endif
