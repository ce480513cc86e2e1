// In a page that is opened from a folder, browsers refuse the worker of the search.
// Its script then runs in a hidden frame. The name keeps Material's `offline` plugin
// from loading its own version of this from the network.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.inside = new Promise(resolve => {
        const frame = document.createElement("iframe")
        frame.hidden = true
        frame.onload = () => {
          const inside = frame.contentWindow
          inside.postMessage = data =>
            this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = url
          script.onload = () => resolve(inside)
          inside.document.body.append(script)
        }
        document.body.append(frame)
      })
    }

    postMessage(data) {
      this.inside.then(inside =>
        inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
