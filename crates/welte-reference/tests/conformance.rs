//! The suite's programs, requests and literal expectations on the reference device, which is its own oracle here.

use welte_reference::device;

welte_device::conformance_tests!(device(), device());
