#include "platform/topology/topology.hpp"
