/** Numbers beside the names of pages, as the stream says. */

import type { OpenCounts } from "../api/stream";
import { store } from "./store";

export const counts = store<Partial<OpenCounts>>({});
